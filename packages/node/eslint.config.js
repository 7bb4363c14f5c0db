import { existsSync } from "node:fs";

import eslint from "@eslint/js";
import { defineConfig } from "eslint/config";
import tseslint from "typescript-eslint";

const hasOrms = existsSync("tests/orms/node_modules");

export default defineConfig(
  {
    // The packages of tests/orms are installed by its own tests only.
    ignores: ["build/", "dist/", "**/generated/", ...(hasOrms ? [] : ["tests/orms/"])],
  },
  eslint.configs.recommended,
  {
    files: ["**/*.ts"],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: {
      parserOptions: {
        project: ["./tsconfig.tests.json", ...(hasOrms ? ["./tests/orms/tsconfig.json"] : [])],
        tsconfigRootDir: import.meta.dirname,
      },
    },
    rules: { "max-len": ["error", { code: 100 }] },
  },
  {
    files: ["tests/**/*.ts"],
    rules: {
      // `describe` and `test` return promises that the runner awaits.
      "@typescript-eslint/no-floating-promises": "off",
    },
  },
  {
    files: ["tests/types/*.ts", "tests/orms/types.ts"],
    rules: {
      "@typescript-eslint/no-empty-function": "off",
      "@typescript-eslint/no-unused-expressions": "off",
      "@typescript-eslint/no-unsafe-call": "off",
      "@typescript-eslint/require-await": "off",
    },
  },
  {
    files: ["**/*.mjs", "**/*.cjs"],
    languageOptions: {
      globals: {
        process: "readonly",
        console: "readonly",
        performance: "readonly",
        URL: "readonly",
      },
    },
  },
);

import { existsSync } from "node:fs";

import eslint from "@eslint/js";
import { defineConfig } from "eslint/config";
import tseslint from "typescript-eslint";

// The packages of these folders are installed by their own tests only.
const FOLDERS = ["tests/orms", "recipes"];
const installed = FOLDERS.filter((folder) => existsSync(`${folder}/node_modules`));
const missing = FOLDERS.filter((folder) => !installed.includes(folder));

export default defineConfig(
  {
    ignores: ["build/", "dist/", "**/generated/", ...missing.map((folder) => `${folder}/`)],
  },
  eslint.configs.recommended,
  {
    files: ["**/*.ts"],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: {
      parserOptions: {
        project: [
          "./tsconfig.tests.json",
          ...installed.map((folder) => `./${folder}/tsconfig.json`),
        ],
        tsconfigRootDir: import.meta.dirname,
      },
    },
    rules: { "max-len": ["error", { code: 100 }] },
  },
  {
    files: ["tests/**/*.ts", "recipes/tests/*.ts"],
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

/** The compiled recipes. */

import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

/** Returns the file of the recipe with this name. */
export function fileOf(name: string): string {
  return fileURLToPath(new URL(`../${name}.js`, import.meta.url));
}

/** Writes a broken variant of a recipe, in which a text is replaced. Returns its name. */
export function variantOf(name: string, variant: string, from: string, to: string): string {
  const text = readFileSync(fileOf(name), "utf8");
  if (text.split(from).length !== 2) throw new Error(`${name} does not contain once: ${from}`);
  const broken = `${name}.${variant}`;
  writeFileSync(fileOf(broken), text.replace(from, to));
  return broken;
}

/** Throws a TypeError for an unknown option, which JavaScript would ignore. */
export function checkOptions(of: string, options: object, ...known: readonly string[]): void {
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown === undefined) return;
  throw new TypeError(`${of} has no option ${unknown}: its options are ${known.join(", ")}`);
}

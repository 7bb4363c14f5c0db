/** An object of JSON. */
export type JsonObject = Readonly<Record<string, unknown>>;

/** Returns the value as JSON. A value without JSON, such as `undefined`, is an error. */
export function textOfJson(value: unknown): string {
  const text = JSON.stringify(value) as string | undefined;
  if (text === undefined) throw new TypeError(`a value of type ${typeof value} has no JSON`);
  return text;
}

/** An object of JSON. */
export type JsonObject = Readonly<Record<string, unknown>>;

/** The type of a value that was written as JSON and read again: a `Date` is a string. */
export type Jsonify<T> = unknown extends T
  ? T
  : T extends string | number | boolean | null
    ? T
    : T extends undefined
      ? null
      : T extends { toJSON(): infer J }
        ? Jsonify<J>
        : T extends bigint | symbol | ((...parameters: never[]) => unknown)
          ? never
          : T extends readonly unknown[]
            ? { [N in keyof T]: Jsonify<T[N]> }
            : // A member that is undefined is left out.
              { [N in keyof T]: Jsonify<Exclude<T[N], undefined>> | Extract<T[N], undefined> };

/**
 * Returns the value as JSON. A value that JSON cannot represent, such as a `Map`, a function or
 * `NaN`, is a TypeError at any depth. Members that are undefined are left out.
 */
export function textOfJson(value: unknown): string {
  const text = JSON.stringify(value, represented) as string | undefined;
  if (text === undefined) throw withoutJson("a value of type undefined");
  return text;
}

/** The members of these objects are their content. A `Date` and others have `toJSON`. */
const WITH_MEMBERS: ReadonlySet<string> = new Set(["[object Object]", "[object Array]"]);

/** Gets each value after its `toJSON`, and `this` is the object that has the value. */
function represented(this: unknown, key: string, value: unknown): unknown {
  const original = (this as Record<string, unknown>)[key];
  // toJSON of an invalid date returns null.
  if (original instanceof Date && Number.isNaN(original.getTime())) {
    throw withoutJson("an invalid Date");
  }
  switch (typeof value) {
    case "number":
      if (Number.isFinite(value)) return value;
      throw withoutJson(String(value));
    case "bigint":
    case "function":
    case "symbol":
      throw withoutJson(`a value of type ${typeof value}`);
    case "object": {
      const tag = Object.prototype.toString.call(value);
      if (value === null || WITH_MEMBERS.has(tag)) return value;
      throw withoutJson(tag);
    }
    default:
      return value;
  }
}

function withoutJson(what: string): TypeError {
  return new TypeError(`${what} has no JSON`);
}

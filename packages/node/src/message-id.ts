/** The id of a message. A text that spells a UUID is that UUID. A number must be an integer. */
export type MessageId = string | bigint | number;

/** Returns the id as the text that the server gets. */
export function textOfId(id: MessageId): string {
  switch (typeof id) {
    case "string":
      return id;
    case "bigint":
      return id.toString();
    case "number":
      if (Number.isSafeInteger(id)) return String(id);
      throw new RangeError(`message id ${String(id)} is no safe integer: pass a string or bigint`);
    default:
      throw new TypeError(`a message id is a string, bigint or number, not ${typeof id}`);
  }
}

/**
 * Returns the message id of an id in its scope, for tools and for HTTP requests. Without a scope
 * the id is unique everywhere. One destination can have both kinds, so the id begins with the kind.
 */
export function scopedId(scope: string | null, id: MessageId): string {
  if (scope === null) return `all:${textOfId(id)}`;
  // The length distinguishes scope "a" with id "b:c" from scope "a:b" with id "c".
  return `by:${String(Buffer.byteLength(scope))}:${scope}:${textOfId(id)}`;
}

/** Returns whether a text can be a scope: not empty, no zero byte, and no lone surrogate. */
export function isScope(text: string): boolean {
  return text !== "" && !text.includes("\0") && !/\p{Surrogate}/u.test(text);
}

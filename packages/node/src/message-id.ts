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

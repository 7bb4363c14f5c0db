/**
 * The header `Idempotency-Key` of draft-ietf-httpapi-idempotency-key-header. Its value is a string
 * of a structured field (RFC 9651), or the same text without quotes.
 */

import { Problem } from "./problem.js";

export const HEADER = "idempotency-key";

/** The longest key: the name of the caller and the key together must fit into a message id. */
const LONGEST = 255;

const ASCII = /^[\t -~]*$/;
const BARE = /^[!#-+\--:<-[\]-~]*$/;
const STRING = /"((?:[ !#-[\]-~]|\\["\\])*)"/y;
const PARAMETER_NAME = /[a-z*][a-z0-9_.*-]*/y;
const PARAMETER_VALUES: readonly RegExp[] = [
  /-?\d{1,12}\.\d{1,3}(?!\d)/y, // decimal
  /-?\d{1,15}(?![.\d])/y, // integer
  /"(?:[ !#-[\]-~]|\\["\\])*"/y, // string
  /[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*/y, // token
  /:(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2,3}={0,2})?:/y, // bytes
  /\?[01]/y, // boolean
  /@-?\d{1,15}(?![.\d])/y, // date
  /%"(?:[ !#$&-~]|%[0-9a-f]{2})*"/y, // display string
];
const QUOTED_RULE =
  "a key in quotes must be one string of printable ASCII characters, with a backslash before " +
  "each quote and each backslash in it (RFC 9651)";

/**
 * Returns the key, or null for a request without the header. `values` are the values of all headers
 * with this name.
 *
 * @throws Problem for an invalid key.
 */
export function keyOf(values: readonly string[]): string | null {
  const [value] = values;
  if (value === undefined) return null;
  if (values.length > 1) throw bad("it occurs more than once");
  return parse(value);
}

function parse(value: string): string {
  if (!ASCII.test(value)) throw bad("it contains characters that are not ASCII");
  const text = value.replace(/^[ \t]+|[ \t]+$/g, "");
  const key = text.startsWith('"') ? quoted(text) : bare(text);
  if (key === "") throw bad("it is empty");
  if (key.length > LONGEST) throw bad("it has more than 255 characters");
  return key;
}

/** Parses a key in quotes. Parameters are ignored, because the draft defines none. */
function quoted(text: string): string {
  const string = matchAt(STRING, text, 0);
  if (string === null) throw malformed("the string is not valid", firstInvalid(text));
  const end = afterParameters(text, string[0].length);
  if (end < text.length) throw malformed("trailing characters", end);
  return (string[1] ?? "").replace(/\\(.)/g, "$1");
}

/** Returns the index of the character at which the string stops to be valid. */
function firstInvalid(text: string): number {
  let index = 1;
  while (index < text.length) {
    const character = text.charAt(index);
    if (character === "\\") {
      if (!/^["\\]$/.test(text.charAt(index + 1))) return index + 1;
      index += 1;
    } else if (character < " " || character > "~") {
      return index;
    }
    index += 1;
  }
  return index;
}

/** Returns the index after the parameters and the spaces at the end. */
function afterParameters(text: string, start: number): number {
  let index = start;
  while (text.charAt(index) === ";") {
    index = afterSpaces(text, index + 1);
    const name = matchAt(PARAMETER_NAME, text, index);
    if (name === null) throw malformed("the name of a parameter is expected", index);
    index += name[0].length;
    if (text.charAt(index) === "=") index = afterValue(text, index + 1);
  }
  return afterSpaces(text, index);
}

function afterValue(text: string, index: number): number {
  for (const pattern of PARAMETER_VALUES) {
    const value = matchAt(pattern, text, index);
    if (value !== null) return index + value[0].length;
  }
  throw malformed("the value of a parameter is expected", index);
}

function afterSpaces(text: string, start: number): number {
  let index = start;
  while (text.charAt(index) === " ") index += 1;
  return index;
}

/** Parses a key without quotes, which many clients send. */
function bare(text: string): string {
  if (BARE.test(text)) return text;
  throw bad(
    "a key without quotes must not contain spaces, quotes, backslashes, commas or semicolons",
  );
}

/** Matches a sticky expression at an index. */
function matchAt(pattern: RegExp, text: string, index: number): RegExpExecArray | null {
  pattern.lastIndex = index;
  return pattern.exec(text);
}

function malformed(what: string, index: number): Problem {
  return bad(`${what} at index ${String(index)}; ${QUOTED_RULE}`);
}

function bad(reason: string): Problem {
  return new Problem("bad-key", `the Idempotency-Key header is invalid: ${reason}`);
}

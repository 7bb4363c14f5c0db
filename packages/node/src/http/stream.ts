/** Collects the body of a response. */

/** Reads a stream. `check` gets its size until now, and throws an error that stops the stream. */
export async function collected(
  stream: AsyncIterable<string | Uint8Array> | Iterable<string | Uint8Array>,
  check: (size: number) => void,
): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of stream) {
    const bytes = typeof chunk === "string" ? Buffer.from(chunk) : chunk;
    size += bytes.length;
    check(size);
    chunks.push(bytes);
  }
  return Buffer.concat(chunks);
}

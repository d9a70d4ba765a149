// Server-sent events, out of an answer that fetch reads. EventSource could not send the
// credential.

export interface Event {
  event: string;
  id: string;
  data: string;
}

/** The longest event in characters. The platform sends parts of about 100 KB. */
const eventMax = 8 << 20;

function parse(block: string): Event | null {
  const e: Event = { event: "", id: "", data: "" };
  for (const line of block.split("\n")) {
    const i = line.indexOf(": ");
    const name = line.slice(0, i);
    if (i > 0 && (name === "event" || name === "id" || name === "data")) e[name] = line.slice(i + 2);
  }
  return e.data ? e : null; // else it is a comment
}

/** The events of a stream, as many at a time as came. A comment is an empty batch. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<Event[]> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop()!;
      if (rest.length > eventMax) throw new Error("an event is too long");
      yield blocks.map(parse).filter((e) => e !== null);
    }
  } finally {
    void reader.cancel().catch(() => undefined); // it may be cut already
  }
}

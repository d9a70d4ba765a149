// Uploads and downloads that are under way. They go on while the reader looks at another
// directory.
import { signal } from "@preact/signals";
import type { VNode } from "preact";
import { bytes } from "./format";
import { download, upload } from "./inside";
import { reason, tell } from "./ui";
import { visible } from "./visible";

interface Transfer {
  id: number;
  label: string;
  done: number;
  all: number;
  stop: AbortController;
}

const transfers = signal<readonly Transfer[]>([]);
let ids = 0;

async function carry(label: string, all: number, run: (came: (n: number) => void, signal: AbortSignal) => Promise<void>): Promise<boolean> {
  const t: Transfer = { id: ++ids, label, done: 0, all, stop: new AbortController() };
  transfers.value = [...transfers.value, t];
  try {
    await run((done) => (transfers.value = transfers.value.map((x) => (x.id === t.id ? { ...x, done } : x))), t.stop.signal);
    return true;
  } catch (e) {
    tell(t.stop.signal.aborted ? `${label}: you stopped it.` : `${label}: ${reason(e)}`, true);
    return false;
  } finally {
    transfers.value = transfers.value.filter((x) => x.id !== t.id);
  }
}

/** Uploads one file after the other, and says how many arrived. */
export async function sendAll(name: string, directory: string, files: File[]): Promise<number> {
  let n = 0;
  for (const f of files) {
    if (await carry(`Upload of ${visible(f.name)}`, f.size, (came, stop) => upload(name, directory, f, came, stop))) n++;
  }
  return n;
}

/** Has the browser save a file. It opens none: the bytes are of a type that no browser shows. */
export async function receive(name: string, path: string, as: string, size: number): Promise<void> {
  await carry(`Download of ${visible(as)}`, size, async (came, stop) => {
    const url = URL.createObjectURL(await download(name, path, came, stop));
    const a = document.createElement("a");
    a.href = url;
    a.download = visible(as).replace(/[/\\]/g, "_");
    a.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000); // the browser has it by then
  });
}

export function Transfers(): VNode | null {
  if (transfers.value.length === 0) return null;
  return (
    <ul class="card inside transfers" aria-label="Transfers">
      {transfers.value.map((t) => (
        <li key={t.id}>
          <span class="grows">{t.label} <span class="quiet">{bytes(t.done)} of {bytes(t.all)}</span></span>
          <progress aria-label={t.label} value={t.done} max={Math.max(1, t.all)} />
          <button type="button" class="small" onClick={() => t.stop.abort()}>Stop</button>
        </li>
      ))}
    </ul>
  );
}

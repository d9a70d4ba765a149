// The API inside a sandbox, as the page calls it. Each call wakes the sandbox: a view asks
// the reader first. A program of the sandbox may answer in the place of the agent, so
// nothing is believed of an answer: sizes are bounded before they are read, each member is
// what it should be or is empty, and nothing of it becomes markup or an address.
import { caller, reach, Refusal, sentence } from "./api";
import { bytes } from "./format";

/** The most of a list that is read. The agent lists 16 MiB of output at most. */
const listMax = 24 << 20;
/** The most of a text that the page opens. */
export const textMax = 1 << 20;
/** The most of a file that the page holds in memory, to save it. */
export const downloadMax = 256 << 20;
/** An upload has parts of this size, each in a request of its own. */
const partSize = 4 << 20;
const errorMax = 64 << 10;

/** The path of a sandbox at the address of the platform. */
export const baseOf = (name: string): string => `/run/${encodeURIComponent(caller.value?.workspace ?? "")}/sandboxes/${encodeURIComponent(name)}`;

const fileAt = (path: string): string => "/filesystem/" + encodeURIComponent(path);

/** Reads an answer, and no more than so many bytes. */
async function take(r: Response, most: number, what: string, came: (n: number) => void = () => undefined): Promise<Uint8Array<ArrayBuffer>[]> {
  const tooLarge = (): Refusal => new Refusal(413, `${what} has more than ${bytes(most)}, which is the most that this page reads.`);
  const parts: Uint8Array<ArrayBuffer>[] = [];
  if (Number(r.headers.get("Content-Length")) > most) {
    await r.body?.cancel();
    throw tooLarge();
  }
  const reader = r.body?.getReader();
  for (let all = 0; reader; ) {
    const { done, value } = await reader.read();
    if (done) break;
    all += value.length;
    if (all > most) {
      await reader.cancel();
      throw tooLarge();
    }
    parts.push(value);
    came(all);
  }
  return parts;
}

async function textOf(r: Response, most: number, what: string): Promise<string> {
  return await new Blob(await take(r, most, what)).text();
}

async function refusal(r: Response): Promise<Refusal> {
  let said: unknown;
  try {
    const body = JSON.parse(await textOf(r, errorMax, "The error")) as Fields | null;
    said = body?.message ?? body?.error;
    if (said !== null && typeof said === "object") said = (said as Fields).message;
  } catch {
    // it said nothing that can be read
  }
  return new Refusal(r.status, typeof said === "string" && said ? sentence(said.slice(0, 500)) : `The sandbox answers ${r.status}.`);
}

async function send(name: string, path: string, init: RequestInit): Promise<Response> {
  const r = await reach(baseOf(name) + path, init);
  if (!r.ok) throw await refusal(r);
  return r;
}

async function json(name: string, path: string, init: RequestInit): Promise<unknown> {
  const text = await textOf(await send(name, path, { ...init, headers: { Accept: "application/json", ...init.headers } }), listMax, "The list");
  try {
    return JSON.parse(text);
  } catch {
    throw new Refusal(502, "The answer is not from the agent of the sandbox.");
  }
}

const bodied = (method: string, body: unknown): RequestInit => ({ method, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });

type Fields = Record<string, unknown>;
const fields = (v: unknown): Fields => (v !== null && typeof v === "object" ? (v as Fields) : {});
const text = (v: unknown): string => (typeof v === "string" ? v : "");
const number = (v: unknown): number => (typeof v === "number" && Number.isFinite(v) ? v : 0);
const list = (v: unknown): Fields[] => (Array.isArray(v) ? v.map(fields) : []);

export interface Process {
  pid: string;
  name: string;
  command: string;
  status: string;
  /** In milliseconds, or NaN. */
  started: number;
  exitCode: number;
  restarts: number;
}

const processOf = (f: Fields): Process => ({
  pid: text(f.pid), name: text(f.name), command: text(f.command), status: text(f.status), started: Date.parse(text(f.startedAt)),
  exitCode: number(f.exitCode), restarts: number(f.restartCount),
});

const processAt = (pid: string): string => "/process/" + encodeURIComponent(pid);

export async function processes(name: string, signal?: AbortSignal): Promise<Process[]> {
  return list(await json(name, "/process", { signal })).map(processOf);
}

export interface Command {
  command: string;
  name?: string;
  workingDir?: string;
}

export const startProcess = async (name: string, c: Command): Promise<Process> => processOf(fields(await json(name, "/process", bodied("POST", c))));

export async function endProcess(name: string, pid: string, kill: boolean): Promise<void> {
  await json(name, processAt(pid) + (kill ? "/kill" : ""), { method: "DELETE" });
}

export interface Line {
  error: boolean;
  text: string;
}

const lineMax = 8 << 10; // characters of a line that are shown

/** Gives the lines that a process wrote and writes, until it ends or the signal comes. */
export async function follow(name: string, pid: string, signal: AbortSignal, got: (lines: Line[]) => void): Promise<void> {
  const r = await send(name, processAt(pid) + "/logs/stream", { signal, headers: { Accept: "text/plain" } });
  const reader = r.body?.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; reader; ) {
    const { done, value = "" } = await reader.read();
    const parts = (rest + value).split("\n");
    rest = done ? "" : (parts.pop() ?? "").slice(0, 2 * lineMax); // a line without an end does not fill the memory
    const lines = parts.filter((l) => l && !l.startsWith("[keepalive]")).map((l) => {
      const error = l.startsWith("stderr:");
      return { error, text: l.slice(error || l.startsWith("stdout:") ? 7 : 0).slice(0, lineMax) };
    });
    if (lines.length > 0) got(lines);
    if (done) return;
  }
}

export interface Entry {
  name: string;
  path: string;
  directory: boolean;
  size: number;
  mode: string;
  /** In milliseconds, or NaN. */
  changed: number;
}

export interface Directory {
  path: string;
  entries: Entry[];
}

const under = (directory: string, name: string): string => directory.replace(/\/*$/, "/") + name;

/** What is in a directory. Without a path it is the one where commands start. */
export async function directory(name: string, path: string, signal?: AbortSignal): Promise<Directory> {
  const d = fields(await json(name, path ? fileAt(path) : "/filesystem/", { signal }));
  if (!Array.isArray(d.files) || !Array.isArray(d.subdirectories)) throw new Refusal(400, "This is no directory.");
  const here = path || text(d.path) || "/";
  const entry = (f: Fields, isDirectory: boolean): Entry => ({
    name: text(f.name), path: under(here, text(f.name)), directory: isDirectory, size: number(f.size),
    mode: text(f.permissions), changed: Date.parse(text(f.lastModified)),
  });
  return { path: here, entries: [...list(d.subdirectories).map((f) => entry(f, true)), ...list(d.files).map((f) => entry(f, false))].filter((e) => e.name) };
}

const raw: RequestInit = { headers: { Accept: "application/octet-stream" } };

/** The bytes of a file of a size that the page opens. */
export async function content(name: string, path: string, signal?: AbortSignal): Promise<Uint8Array> {
  const r = await send(name, fileAt(path), { ...raw, signal });
  if (!r.headers.has("Content-Disposition")) {
    await r.body?.cancel();
    throw new Refusal(400, "This is a directory.", 0, "directory"); // only files have one
  }
  const parts = await take(r, textMax, "The file");
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** A file, to be saved. Its type has no browser show it. */
export async function download(name: string, path: string, came: (n: number) => void, signal: AbortSignal): Promise<Blob> {
  const parts = await take(await send(name, fileAt(path) + "?download=true", { ...raw, signal }), downloadMax, "The file", came);
  return new Blob(parts, { type: "application/octet-stream" });
}

export async function write(name: string, path: string, content: string): Promise<void> {
  await json(name, fileAt(path), bodied("PUT", { content }));
}

export async function makeDirectory(name: string, path: string): Promise<void> {
  await json(name, fileAt(path), bodied("PUT", { isDirectory: true }));
}

export async function remove(name: string, e: Entry): Promise<void> {
  await json(name, fileAt(e.path) + (e.directory ? "?recursive=true" : ""), { method: "DELETE" });
}

const inForm = (b: Blob): FormData => {
  const form = new FormData();
  form.append("file", b, "file");
  return form;
};

/** Sends a file. A large one goes in parts, and the file is there once all of them are. */
export async function upload(name: string, directory: string, file: File, sent: (n: number) => void, signal: AbortSignal): Promise<void> {
  const path = under(directory, file.name);
  if (file.size <= partSize) {
    await json(name, fileAt(path), { method: "PUT", body: inForm(file), signal });
    sent(file.size);
    return;
  }
  const at = "/filesystem-multipart/";
  const { uploadId } = fields(await json(name, `${at}initiate/${encodeURIComponent(path)}`, { ...bodied("POST", {}), signal }));
  const of = at + encodeURIComponent(text(uploadId));
  try {
    const parts: { partNumber: number; etag: string }[] = [];
    for (let from = 0; from < file.size; from += partSize) {
      const n = parts.length + 1;
      const part = fields(await json(name, `${of}/part?partNumber=${n}`, { method: "PUT", body: inForm(file.slice(from, from + partSize)), signal }));
      parts.push({ partNumber: n, etag: text(part.etag) });
      sent(Math.min(file.size, from + partSize));
    }
    await json(name, of + "/complete", { ...bodied("POST", { parts }), signal });
  } catch (e) {
    await json(name, of + "/abort", { method: "DELETE" }).catch(() => undefined); // the agent drops it after a day
    throw e;
  }
}

export interface Mount {
  drive: string;
  path: string;
  readOnly: boolean;
}

export async function mounts(name: string, signal?: AbortSignal): Promise<Mount[]> {
  const all = fields(await json(name, "/drives/mount", { signal }));
  return list(all.mounts).map((m) => ({ drive: text(m.driveName), path: text(m.mountPath), readOnly: m.readOnly === true }));
}

// The files of a sandbox: one directory at a time, or one text.
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { may } from "./api";
import { Ask } from "./ask";
import { Confirm } from "./confirm";
import { ago, bytes, moment, plural } from "./format";
import { Gate, says } from "./gate";
import { directory, downloadMax, makeDirectory, remove, type Directory, type Entry } from "./inside";
import { TextFile } from "./textfile";
import { receive, sendAll, Transfers } from "./transfers";
import { at, Fault, now, place, readOnly, reason, tell } from "./ui";
import { visible } from "./visible";

interface Props {
  name: string;
  awake: boolean;
}

/** The address of a directory or of a text. */
export const addressOf = (name: string, kind: "path" | "file", path: string): string => `${at("sandboxes", name, "files")}?${new URLSearchParams({ [kind]: path }).toString()}`;

export function FilesView({ name, awake }: Props): VNode {
  const q = place.value.query;
  const path = q.get("path") ?? "";
  const file = q.get("file");
  return (
    <>
      {file !== null
        ? <Gate key={"file " + file} name={name} what="The file" awake={awake}><TextFile name={name} path={file} awake={awake} /></Gate>
        : <Gate key={"path " + path} name={name} what="The directory" awake={awake}><Listing name={name} path={path} awake={awake} /></Gate>}
      <Transfers />
    </>
  );
}

/** The directories on the way to a path, each with its address. */
export function Crumbs({ name, path }: { name: string; path: string }): VNode {
  const parts = path.split("/").filter(Boolean);
  return (
    <nav class="crumbs" aria-label="Where this is">
      <ol>
        <li><a href={addressOf(name, "path", "/")} aria-current={parts.length === 0 ? "page" : undefined}>/</a></li>
        {parts.map((p, i) => (
          <li key={i}>
            {i === parts.length - 1
              ? <b aria-current="page"><bdi>{visible(p)}</bdi></b>
              : <><a href={addressOf(name, "path", "/" + parts.slice(0, i + 1).join("/"))}><bdi>{visible(p)}</bdi></a> /</>}
          </li>
        ))}
      </ol>
    </nav>
  );
}

/** What the permission bits say, as ls does. Those above the ninth are named in octal. */
function modeOf(octal: string): string {
  const n = parseInt(octal, 8);
  if (!Number.isFinite(n)) return "";
  const letters = [6, 3, 0].map((shift) => "rwx".replace(/./g, (c, i: number) => ((n >> (shift + 2 - i)) & 1 ? c : "-"))).join("");
  return n > 0o777 ? `${letters} ${n.toString(8)}` : letters;
}

const rowsOf = 300;

type Asked = { what: "directory" } | { what: "delete"; entry: Entry } | { what: "replace"; files: File[]; taken: string[] };

function Listing({ name, path, awake }: Props & { path: string }): VNode {
  const [known, setKnown] = useState<Directory | null>(null);
  const [readAt, setReadAt] = useState(0);
  const [fault, setFault] = useState("");
  const [turn, setTurn] = useState(0);
  const [filter, setFilter] = useState("");
  const [most, setMost] = useState(rowsOf);
  const [asked, setAsked] = useState<Asked | null>(null);
  const [over, setOver] = useState(false);
  const picker = useRef<HTMLInputElement>(null);
  const again = (): void => setTurn((n) => n + 1);
  useEffect(() => {
    const stop = new AbortController();
    directory(name, path, stop.signal).then(
      (d) => (setKnown(d), setReadAt(Date.now()), setFault("")),
      (e: unknown) => stop.signal.aborted || setFault(reason(e)),
    );
    return () => stop.abort();
  }, [name, path, turn]);
  if (!known) return <section class="card inside">{path && <Crumbs name={name} path={path} />}{fault ? <Fault>{fault}</Fault> : <p class="quiet" role="status">Looking…</p>}</section>;
  const writes = !readOnly.value && may("sandboxes:control");
  const here = known.path;
  const close = (): void => setAsked(null);
  const send = (files: File[]): void => void sendAll(name, here, files).then((n) => n > 0 && (tell(`${plural(n, "file")} arrived in ${here}.`), again()));
  const offer = (files: File[]): void => {
    const taken = files.map((f) => f.name).filter((n) => known.entries.some((e) => e.name === n));
    if (taken.length > 0) setAsked({ what: "replace", files, taken });
    else send(files);
  };
  const act = async (said: string, run: () => Promise<void>): Promise<boolean> => {
    try {
      await run();
      tell(said);
      again();
      return true;
    } catch (e) {
      tell(reason(e), true);
      return false;
    }
  };
  const save = (e: Entry): void => {
    if (e.size > downloadMax) tell(`${visible(e.name)} has ${bytes(e.size)}, which is too much for a browser. Copy it with scp: doze ssh --config says how.`, true);
    else void receive(name, e.path, e.name, e.size);
  };
  const dropped = (e: DragEvent): void => {
    e.preventDefault();
    setOver(false);
    const items = [...(e.dataTransfer?.items ?? [])];
    if (items.some((i) => i.webkitGetAsEntry()?.isDirectory)) tell("The page takes files, and no directories.", true);
    else if (e.dataTransfer?.files.length) offer([...e.dataTransfer.files]);
  };
  const fits = filter ? known.entries.filter((e) => e.name.toLowerCase().includes(filter.toLowerCase())) : known.entries;
  return (
    <section class={over ? "card inside over" : "card inside"} aria-label={`Files in ${here}`}
      onDragOver={(e) => writes && (e.preventDefault(), setOver(true))} onDragLeave={() => setOver(false)} onDrop={(e) => writes && dropped(e)}>
      <div class="line">
        <Crumbs name={name} path={here} />
        <input class="narrow" type="search" aria-label="Filter by name" placeholder="Filter" spellcheck={false} value={filter} onInput={(e) => setFilter(e.currentTarget.value)} />
        <button type="button" class="small" onClick={again}>{says("Refresh", awake)}</button>
        {writes && <button type="button" class="small" onClick={() => setAsked({ what: "directory" })}>New directory</button>}
        {writes && <button type="button" class="small primary" onClick={() => picker.current?.click()}>{says("Upload", awake)}</button>}
        <input ref={picker} type="file" multiple hidden aria-label="Files to upload" onChange={(e) => {
          offer([...(e.currentTarget.files ?? [])]);
          e.currentTarget.value = "";
        }} />
      </div>
      {fault && <Fault>{fault}</Fault>}
      {!awake && <p class="quiet">The sandbox sleeps. This is the directory as it was {ago(readAt, now.value)}.</p>}
      {fits.length === 0 && <p class="empty">{filter ? "No name fits." : "The directory is empty."}{writes && !filter && " Drop files here to upload them."}</p>}
      {fits.length > 0 && (
        <div class="scrolls" tabIndex={0} role="region" aria-label="Listing">
          <table class="rows">
            <thead><tr><th scope="col">Name</th><th scope="col" class="number">Size</th><th scope="col" class="wide-only">Mode</th><th scope="col" class="wide-only">Changed</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
            <tbody>
              {fits.slice(0, most).map((e) => (
                <tr key={e.path}>
                  <th scope="row"><a href={addressOf(name, e.directory ? "path" : "file", e.path)}><bdi>{visible(e.name)}</bdi>{e.directory && "/"}</a></th>
                  <td class="number">{e.directory ? "" : bytes(e.size)}</td>
                  <td class="wide-only"><code>{e.directory ? "" : modeOf(e.mode)}</code></td>
                  <td class="wide-only quiet">{!Number.isNaN(e.changed) && <time dateTime={new Date(e.changed).toISOString()}>{moment(e.changed)}</time>}</td>
                  <td class="acts">
                    {!e.directory && <button type="button" class="small" aria-label={says(`Download ${visible(e.name)}`, awake)} onClick={() => save(e)}>Download</button>}
                    {writes && <button type="button" class="small danger" aria-label={`Delete ${visible(e.name)}`} onClick={() => setAsked({ what: "delete", entry: e })}>Delete</button>}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <p class="quiet" role="status">
        {plural(fits.length, "entry", "entries")}{fits.length > most && <>, of which {most} are shown. <button type="button" class="small" onClick={() => setMost(most + rowsOf)}>Show {rowsOf} more</button></>}
      </p>
      {asked?.what === "directory" && (
        <Ask title={`New directory in ${here}`} label="Name of the directory" submit={says("Make it", awake)} close={close} about="Its parents are made as well, if the name has slashes."
          run={(text) => act(`${text} is there.`, () => makeDirectory(name, here.replace(/\/*$/, "/") + text))} />
      )}
      {asked?.what === "delete" && (
        <Confirm title={`Delete ${visible(asked.entry.name)}?`} submit={says("Delete it", awake)} close={close}
          about={asked.entry.directory ? "All that is in the directory is deleted, too. Nobody can bring it back." : "Nobody can bring it back."}
          run={() => act(`${visible(asked.entry.name)} is deleted.`, () => remove(name, asked.entry))} />
      )}
      {asked?.what === "replace" && (
        <Confirm title={`Replace ${plural(asked.taken.length, "file")}?`} submit={says("Replace", awake)} close={close}
          about={`${asked.taken.slice(0, 5).map(visible).join(", ")}${asked.taken.length > 5 ? " and others" : ""} would have the content of what you upload.`}
          run={() => (send(asked.files), Promise.resolve(true))} />
      )}
    </section>
  );
}

// A text of a sandbox: one reads it, changes it, sees what one changed, and saves it. It is
// not saved over what somebody else wrote since.
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { may, Refusal } from "./api";
import type { Editor } from "./editor";
import { Crumbs, addressOf } from "./files";
import { says } from "./gate";
import { content, textMax, write } from "./inside";
import { receive } from "./transfers";
import { Fault, readOnly, reason, tell } from "./ui";

interface Text {
  text: string;
  lineEnd: string;
  /** Why the editor would not write it as it is, or empty. */
  fixed: string;
}

class NoText extends Error {}

/** Makes a text of bytes, if it is one. */
function decode(b: Uint8Array): Text {
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(b);
  } catch {
    throw new NoText();
  }
  if (text.includes("\0")) throw new NoText();
  const ends = new Set(text.match(/\r\n|\r|\n/g) ?? []);
  const fixed = ends.size > 1 ? "Its lines end in several ways, which an editor would change." : ends.has("\r") ? "Its lines end with CR alone." : "";
  return { text, lineEnd: ends.has("\r\n") ? "\r\n" : "\n", fixed };
}

/** What somebody typed and did not save, by sandbox and path. It lasts as long as the page. */
const drafts = new Map<string, { opened: Text; text: string }>();
const draftsMax = 8;

function keepDraft(key: string, opened: Text, text: string): void {
  drafts.delete(key);
  drafts.set(key, { opened, text });
  for (const first of drafts.keys()) {
    if (drafts.size <= draftsMax) break;
    drafts.delete(first);
  }
}

interface Props {
  name: string;
  path: string;
  awake: boolean;
}

export function TextFile({ name, path, awake }: Props): VNode {
  const key = name + " " + path;
  const [opened, setOpened] = useState<Text | null>(null);
  const base = useRef<Text | null>(null);
  base.current = opened;
  const [turn, setTurn] = useState(0);
  const [dirty, setDirty] = useState(false);
  const [compared, setCompared] = useState(false);
  const [conflict, setConflict] = useState(false);
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const [binary, setBinary] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const diff = useRef<HTMLDivElement>(null);
  const editor = useRef<Editor | null>(null);
  const writable = !readOnly.value && may("sandboxes:control") && opened?.fixed === "";
  const file = path.slice(path.lastIndexOf("/") + 1);

  useEffect(() => {
    const stop = new AbortController();
    setFault("");
    const draft = drafts.get(key);
    if (draft) return setOpened(draft.opened);
    content(name, path, stop.signal).then(
      (b) => setOpened(decode(b)),
      (e: unknown) => {
        if (stop.signal.aborted) return;
        if (e instanceof Refusal && e.code === "directory") location.replace(addressOf(name, "path", path));
        else setFault(reason(e));
      },
    ).catch((e: unknown) => (e instanceof NoText ? setBinary(true) : setFault(reason(e))));
    return () => stop.abort();
  }, [name, path, turn]);

  const there = opened !== null;
  useEffect(() => {
    if (!opened || !box.current) return;
    let over = false;
    void import("./editor").then(({ edit }) => {
      if (over || !box.current) return;
      const text = drafts.get(key)?.text ?? opened.text;
      setDirty(text !== opened.text);
      editor.current = edit(box.current, { text, opened: opened.text, lineEnd: opened.lineEnd, writable, label: `Text of ${file}`, changed: setDirty });
    }, (e: unknown) => setFault("The editor did not load. Load the page again. " + reason(e)));
    return () => {
      over = true;
      const text = editor.current?.text();
      if (text === undefined || !base.current || text === base.current.text) drafts.delete(key);
      else keepDraft(key, base.current, text);
      editor.current?.close();
      editor.current = null;
    };
  }, [there, writable]);

  useEffect(() => {
    if (!compared || !opened || !diff.current) return;
    let close: (() => void) | null = null;
    const at = diff.current;
    void import("./editor").then(({ compare }) => {
      if (at.isConnected && editor.current) close = compare(at, opened.text, editor.current.text(), opened.lineEnd);
    });
    return () => close?.();
  }, [compared]);

  useEffect(() => {
    if (!dirty) return;
    const ask = (e: BeforeUnloadEvent): void => e.preventDefault();
    addEventListener("beforeunload", ask);
    return () => removeEventListener("beforeunload", ask);
  }, [dirty]);

  const save = async (): Promise<void> => {
    const text = editor.current?.text();
    if (!opened || text === undefined) return;
    setBusy(true);
    setFault("");
    try {
      const now = await content(name, path);
      if (new TextDecoder("utf-8", { ignoreBOM: true }).decode(now) !== opened.text) {
        setConflict(true);
      } else {
        await write(name, path, text);
        tell(`${file} is saved.`);
        editor.current?.rebase(text);
        setCompared(false);
        setDirty(false);
        setOpened({ ...opened, text });
      }
    } catch (e) {
      setFault(e instanceof Refusal && e.status === 404 ? "The file is gone: somebody deleted or moved it. Your text is still here." : reason(e));
    }
    setBusy(false);
  };
  const reload = (): void => {
    editor.current?.close();
    editor.current = null;
    drafts.delete(key);
    setConflict(false);
    setCompared(false);
    setDirty(false);
    setOpened(null);
    setTurn(turn + 1);
  };
  return (
    <section class="card inside" aria-label={`The file ${file}`}>
      <div class="line">
        <Crumbs name={name} path={path} />
        <button type="button" class="small" onClick={() => void receive(name, path, file, 0)}>{says("Download", awake)}</button>
        {writable && !compared && <button type="button" class="small primary" disabled={!dirty} onClick={() => setCompared(true)}>Review the changes</button>}
        {compared && <button type="button" class="small" onClick={() => (setCompared(false), setConflict(false))}>Back to the text</button>}
        {compared && <button type="button" class="small primary" disabled={busy} onClick={() => void save()}>{busy ? "Saving…" : says("Save", awake)}</button>}
      </div>
      {fault && <Fault>{fault}</Fault>}
      {binary && <p class="empty">This is no text in UTF-8. Download it to look at it.</p>}
      {conflict && (
        <div class="fault" role="alert">
          <p>The file changed since you opened it, so your text was not saved. It is still here.</p>
          <button type="button" class="small" onClick={reload}>Open it again, without your changes</button>
        </div>
      )}
      {opened?.fixed && <p class="quiet">{opened.fixed} So it is shown only.</p>}
      {!opened && !fault && !binary && <p class="quiet" role="status">Reading…</p>}
      {compared && <h2 class="unseen">What you changed</h2>}
      {compared && <div class="editor" ref={diff} />}
      {opened && <div class="editor" ref={box} hidden={compared} />}
      {opened && <p class="quiet" role="status">{dirty ? "There are changes that are not saved." : "Nothing is changed."} The page opens texts of up to {textMax >> 20} MB.</p>}
    </section>
  );
}

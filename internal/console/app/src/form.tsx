// A form in a dialog. What it asks is data, and so is what came of it.
import { useEffect, useRef, useState } from "preact/hooks";
import type { VNode } from "preact";
import { Dialog, Fault, reason, tell } from "./ui";

interface Common {
  id: string;
  label: string;
  hint?: string;
  optional?: boolean;
  /** Whether the form asks it, by what was typed so far. */
  when?: (typed: FormData) => boolean;
}

/** What a form asks. */
export type Field = Common &
  (
    | { kind: "text"; value?: string; pattern?: string; example?: string }
    | { kind: "number"; value?: number; least?: number }
    | { kind: "lines"; value?: string; example?: string; secret?: boolean }
    | { kind: "choice"; value?: string; options: readonly (readonly [value: string, label: string])[] }
    | { kind: "several"; options: readonly string[]; value?: readonly string[] }
    | { kind: "yes"; value?: boolean }
    | { kind: "file"; accept: string }
  );

/** What came of an action. */
export interface Outcome {
  said: string;
  /** What is shown this once, such as a new key. */
  once?: { label: string; value: string; hint: string };
  /** The view to go to. */
  go?: string;
}

/** How far an action is: a share from 0 to 1, and in words. */
export type Progress = (share: number, words: string) => void;

export interface Form {
  title: string;
  about?: string;
  submit: string;
  danger?: boolean;
  /** A text that has to be typed before, for what cannot be undone. */
  confirm?: string;
  fields?: readonly Field[];
  /** It ends early when the reader closes the dialog. */
  run: (typed: FormData, progress: Progress, stop: AbortSignal) => Promise<Outcome>;
}

/** The text of a field, without spaces around it. */
export const text = (typed: FormData, id: string): string => String(typed.get(id) ?? "").trim();

/** The texts of a field of several. */
export const several = (typed: FormData, id: string): string[] => typed.getAll(id).map(String);

/** The lines of a field, as they are. A form sends them as those of mails. */
export const lines = (typed: FormData, id: string): string => String(typed.get(id) ?? "").replaceAll("\r\n", "\n");

/** The file of a field. */
export function file(typed: FormData, id: string): File {
  const f = typed.get(id);
  if (f instanceof File && f.name) return f;
  throw new Error("Choose a file.");
}

/** The pairs of a field of lines, each NAME=value. */
export function pairs(typed: FormData, id: string): Record<string, string> {
  const all: Record<string, string> = {};
  for (const line of lines(typed, id).split("\n")) {
    if (line.trim() === "") continue;
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`“${line.trim().slice(0, 40)}” has no equals sign behind a name. Write NAME=value.`);
    all[line.slice(0, at).trim()] = line.slice(at + 1);
  }
  return all;
}

interface Props {
  form: Form;
  close: () => void;
  /** It is called when the action is done. The dialog may be open still. */
  done: () => void;
}

export function FormDialog({ form, close, done }: Props): VNode {
  const ref = useRef<HTMLFormElement>(null);
  const gone = useRef(new AbortController());
  useEffect(() => () => gone.current.abort(), []);
  const [typed, setTyped] = useState<FormData>(new FormData());
  const [busy, setBusy] = useState(false);
  const [how, setHow] = useState<{ share: number; words: string } | null>(null);
  const [fault, setFault] = useState("");
  const [once, setOnce] = useState<Outcome["once"]>();
  const read = (): void => {
    if (ref.current) setTyped(new FormData(ref.current));
  };
  const submit = async (e: Event): Promise<void> => {
    e.preventDefault();
    if (busy || !ref.current) return;
    const now = new FormData(ref.current);
    setBusy(true);
    setFault("");
    try {
      const out = await form.run(now, (share, words) => setHow({ share, words }), gone.current.signal);
      tell(out.said);
      done();
      if (gone.current.signal.aborted) return;
      if (out.go) location.hash = out.go;
      if (out.once) setOnce(out.once);
      else close();
    } catch (e) {
      if (gone.current.signal.aborted) return tell(reason(e), true);
      setFault(reason(e));
    }
    setHow(null);
    setBusy(false);
  };
  if (once) return <Dialog title={form.title} close={close}><Once {...once} close={close} /></Dialog>;
  const wrong = form.confirm !== undefined && text(typed, "confirm") !== form.confirm;
  const fields: readonly Field[] = [
    ...(form.fields ?? []).filter((f) => !f.when || f.when(typed)),
    ...(form.confirm === undefined ? [] : [{ id: "confirm", kind: "text", label: `Type ${form.confirm} to confirm` } as const]),
  ];
  return (
    <Dialog title={form.title} close={close}>
      <form ref={ref} class="asks" onSubmit={submit} onInput={read} onChange={read}>
        {form.about && <p class="quiet">{form.about}</p>}
        {fields.map((f, i) => <Ask key={f.id} field={f} first={i === 0} />)}
        {how && (
          <p role="status">
            <progress value={how.share} max={1} aria-label="How far it is" /> {how.words}
          </p>
        )}
        {fault && <Fault>{fault}</Fault>}
        <div class="buttons">
          <button type="button" onClick={close}>Cancel</button>
          <button type="submit" class={form.danger ? "danger" : "primary"} disabled={wrong || busy} autofocus={fields.length === 0}>{busy ? "Wait…" : form.submit}</button>
        </div>
      </form>
    </Dialog>
  );
}

function Ask({ field: f, first }: { field: Field; first: boolean }): VNode {
  const id = "ask-" + f.id;
  const help = f.hint ? id + "-hint" : undefined;
  const common = { id, name: f.id, "aria-describedby": help, required: !f.optional, autofocus: first };
  const plain = { autocomplete: "off", spellcheck: false };
  const hint = f.hint && <p id={help} class="hint">{f.hint}</p>;
  if (f.kind === "several") {
    return (
      <fieldset class="several" aria-describedby={help}>
        <legend>{f.label}</legend>
        {hint}
        <div>
          {f.options.map((o) => (
            <label key={o}><input type="checkbox" name={f.id} value={o} defaultChecked={f.value?.includes(o)} /> {o}</label>
          ))}
        </div>
      </fieldset>
    );
  }
  if (f.kind === "yes") {
    return (
      <div>
        <label class="yes"><input {...common} required={false} type="checkbox" value="yes" defaultChecked={f.value} /> {f.label}</label>
        {hint}
      </div>
    );
  }
  return (
    <div>
      <label for={id}>{f.label}{f.optional && <span class="quiet"> (may be left empty)</span>}</label>
      {f.kind === "text" && <input {...common} {...plain} type="text" defaultValue={f.value} pattern={f.pattern} placeholder={f.example} />}
      {f.kind === "number" && <input {...common} type="number" defaultValue={f.value} min={f.least} step={1} />}
      {f.kind === "lines" && <textarea {...common} {...plain} class={f.secret ? "masked" : ""} rows={4} placeholder={f.example} defaultValue={f.value} />}
      {f.kind === "file" && <input {...common} type="file" accept={f.accept} />}
      {f.kind === "choice" && (
        <select {...common}>
          {f.options.map(([value, label]) => <option key={value} value={value} selected={value === f.value}>{label}</option>)}
        </select>
      )}
      {hint}
    </div>
  );
}

/** Shows what the platform tells once. */
function Once({ label, value, hint, close }: NonNullable<Outcome["once"]> & { close: () => void }): VNode {
  const field = useRef<HTMLInputElement>(null);
  const [copied, setCopied] = useState("");
  // Without TLS, a browser has no clipboard but for this machine.
  const copy = (): void => {
    field.current?.select();
    if (!isSecureContext) return setCopied("It is selected. Copy it with the keyboard.");
    navigator.clipboard.writeText(value).then(() => setCopied("It is in the clipboard."), () => setCopied("The browser refused to copy. It is selected: copy it with the keyboard."));
  };
  return (
    <div class="asks once">
      <p>{hint}</p>
      <label for="once">{label}</label>
      <input id="once" ref={field} readOnly autofocus value={value} spellcheck={false} onFocus={(e) => e.currentTarget.select()} />
      <p role="status" class="hint">{copied}</p>
      <div class="buttons">
        <button type="button" class="primary" onClick={copy}>Copy</button>
        <button type="button" onClick={close}>I have it</button>
      </div>
    </div>
  );
}

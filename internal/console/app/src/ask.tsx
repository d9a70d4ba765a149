// A question before an action that has one answer, and the call of an action.
import { useState } from "preact/hooks";
import type { VNode } from "preact";
import { call } from "./api";
import { Dialog, reason, tell } from "./ui";

/** Makes a call that changes something, and tells what came of it. */
export async function carryOut(said: string, method: string, path: string, body?: unknown): Promise<boolean> {
  try {
    await call(method, path, body);
    tell(said);
    return true;
  } catch (e) {
    tell(reason(e), true);
    return false;
  }
}

interface AskProps {
  title: string;
  about: string;
  label: string;
  submit: string;
  optional?: boolean;
  danger?: boolean;
  /** The only text that is taken. */
  must?: string;
  close: () => void;
  run: (text: string) => Promise<boolean>;
}

export function Ask(p: AskProps): VNode {
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const wrong = p.must !== undefined ? text !== p.must : !p.optional && text.trim() === "";
  const submit = async (e: Event): Promise<void> => {
    e.preventDefault();
    if (wrong || busy) return;
    setBusy(true);
    if (await p.run(text.trim())) p.close();
    else setBusy(false);
  };
  return (
    <Dialog title={p.title} close={p.close}>
      <form onSubmit={submit}>
        <p class="quiet">{p.about}</p>
        <label for="asked">{p.label}{p.optional && <span class="quiet"> (may be left empty)</span>}</label>
        <input id="asked" autofocus autocomplete="off" spellcheck={false} value={text} onInput={(e) => setText(e.currentTarget.value)} />
        <div class="buttons">
          <button type="button" onClick={p.close}>Cancel</button>
          <button type="submit" class={p.danger ? "danger" : "primary"} disabled={wrong || busy}>{busy ? "Wait…" : p.submit}</button>
        </div>
      </form>
    </Dialog>
  );
}

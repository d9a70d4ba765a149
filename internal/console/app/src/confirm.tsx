// A question with one answer that cannot be taken back.
import type { VNode } from "preact";
import { useState } from "preact/hooks";
import { Dialog } from "./ui";

interface ConfirmProps {
  title: string;
  about: string;
  submit: string;
  close: () => void;
  run: () => Promise<boolean>;
}

export function Confirm(p: ConfirmProps): VNode {
  const [busy, setBusy] = useState(false);
  const submit = async (e: Event): Promise<void> => {
    e.preventDefault();
    setBusy(true);
    if (await p.run()) p.close();
    else setBusy(false);
  };
  return (
    <Dialog title={p.title} close={p.close}>
      <form onSubmit={submit}>
        <p class="quiet">{p.about}</p>
        <div class="buttons">
          <button type="button" onClick={p.close}>Cancel</button>
          <button type="submit" class="danger" disabled={busy}>{busy ? "Wait…" : p.submit}</button>
        </div>
      </form>
    </Dialog>
  );
}

// A view of what is inside a sandbox opens by itself only if the sandbox is awake. One that
// sleeps is woken by a button that says so.
import type { ComponentChildren, VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { call, get, may, type Usage } from "./api";
import { look } from "./live";
import { tierName } from "./tiers";
import { Fault, readOnly, reason } from "./ui";

/** What a button says that calls the sandbox. */
export const says = (label: string, awake: boolean): string => (awake ? label : `${label} (wakes it)`);

interface GateProps {
  name: string;
  /** What opens, such as "The terminal". */
  what: string;
  /** Whether the sandbox was awake when the page last looked. */
  awake: boolean;
  children: ComponentChildren;
}

export function Gate({ name, what, awake, children }: GateProps): VNode {
  const [tier, setTier] = useState("");
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const path = "/sandboxes/" + encodeURIComponent(name);
  useEffect(() => {
    const stop = new AbortController();
    get<Usage>(path + "/usage", stop.signal).then(
      (u) => (setTier(u.tier), setOpen(u.tier === "awake")),
      (e: unknown) => stop.signal.aborted || setFault(reason(e)),
    );
    return () => stop.abort();
  }, [path]);
  if (open) return <>{children}</>;
  const wake = async (): Promise<void> => {
    setBusy(true);
    try {
      await call("POST", path + "/wake");
      setOpen(true);
      document.getElementById("main")?.focus({ preventScroll: true }); // the button is gone
      look();
    } catch (e) {
      setFault(reason(e));
    }
    setBusy(false);
  };
  return (
    <section class="card gate">
      {fault && <Fault>{fault}</Fault>}
      {!tier && !fault && <p class="quiet" role="status">Looking…</p>}
      {tier && (awake || tier === "awake"
        ? <p><b>{name} is awake now.</b> {what} can open.</p>
        : <p><b>{name} sleeps ({tierName(tier).toLowerCase()}).</b> {what} opens inside the sandbox, and that wakes it.</p>)}
      {(tier || fault) && (readOnly.value || !may("sandboxes:control")
        ? <p class="quiet">The page is read-only, so it does not wake it.</p>
        : <button type="button" class="primary" disabled={busy} onClick={() => void wake()}>{busy ? "Waking…" : "Wake and open"}</button>)}
    </section>
  );
}

// The ports of a sandbox that the record names, and its previews. The platform answers
// both, so that looking wakes nothing.
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, may, type List, type Preview, type Sandbox } from "./api";
import { carryOut } from "./ask";
import { plural } from "./format";
import { Confirm } from "./confirm";
import { says } from "./gate";
import { Dialog, Fault, readOnly, reason, tell } from "./ui";

interface Props {
  name: string;
  sandbox: Sandbox;
  awake: boolean;
}

function Copy({ text, what }: { text: string; what: string }): VNode | null {
  if (!isSecureContext) return null; // without TLS, a browser has no clipboard but for this machine
  const copy = (): void => void navigator.clipboard.writeText(text).then(() => tell("The address is in the clipboard."), () => tell("The browser refused to copy.", true));
  return <button type="button" class="small" aria-label={`Copy the address of ${what}`} onClick={copy}>Copy</button>;
}

export function PortsView({ name, sandbox, awake }: Props): VNode {
  const [previews, setPreviews] = useState<Preview[] | null>(null);
  const [fault, setFault] = useState("");
  const [turn, setTurn] = useState(0);
  const [makes, setMakes] = useState<number | null>(null);
  const [drop, setDrop] = useState<Preview | null>(null);
  const path = `/sandboxes/${encodeURIComponent(name)}/previews`;
  const again = (): void => setTurn((n) => n + 1);
  useEffect(() => {
    const stop = new AbortController();
    get<Preview[] | List<Preview>>(path, stop.signal).then(
      (all) => (setPreviews(Array.isArray(all) ? all : all.data), setFault("")),
      (e: unknown) => stop.signal.aborted || setFault(reason(e)),
    );
    return () => stop.abort();
  }, [path, turn]);
  const writes = !readOnly.value && may("sandboxes:update");
  const ports = sandbox.spec.runtime.ports ?? [];
  const url = sandbox.metadata.url ?? "";
  return (
    <>
      <section class="card inside" aria-labelledby="ports">
        <h2 id="ports">Ports</h2>
        {ports.length === 0 && <p class="quiet">The record names no ports. Each port can be reached all the same.</p>}
        <ul class="addresses">
          {ports.map((p) => {
            const address = `${url}/port/${p.target}/`;
            return (
              <li key={p.target}>
                <span><b>{p.target}</b> <span class="quiet">{p.name} {p.protocol}</span> <code>{address}</code></span>
                <Copy text={address} what={`the port ${p.target}`} />
                {writes && <button type="button" class="small" aria-label={`Make a preview of the port ${p.target}`} onClick={() => setMakes(p.target)}>Preview</button>}
              </li>
            );
          })}
        </ul>
        <p class="quiet">The address of a port takes a credential, and is for programs. Make a preview to look at it in a browser.</p>
      </section>
      <section class="card inside" aria-labelledby="previews">
        <div class="line">
          <h2 id="previews">Previews</h2>
          {writes && <button type="button" class="small primary" onClick={() => setMakes(ports[0]?.target ?? 3000)}>New preview</button>}
        </div>
        {fault && <Fault>{fault}</Fault>}
        {previews?.length === 0 && <p class="empty">There is no preview.</p>}
        <ul class="addresses">
          {previews?.map((p) => (
            <li key={p.metadata.name}>
              <span><b>{p.metadata.name}</b> <span class="quiet">port {p.spec.port}, {p.spec.public ? "public" : "private: it needs a token"}</span> <code>{p.spec.url}</code></span>
              {p.spec.url && <Copy text={p.spec.url} what={`the preview ${p.metadata.name}`} />}
              {p.spec.public && p.spec.url && <a class="button small" href={p.spec.url} target="_blank" rel="noopener noreferrer">{says("Open", awake)}</a>}
              {writes && <button type="button" class="small danger" aria-label={`Delete the preview ${p.metadata.name}`} onClick={() => setDrop(p)}>Delete</button>}
            </li>
          ))}
        </ul>
        {previews !== null && <p class="quiet" role="status">{plural(previews.length, "preview")}</p>}
      </section>
      {makes !== null && <Make path={path} port={makes} close={() => setMakes(null)} done={again} />}
      {drop && (
        <Confirm title={`Delete the preview ${drop.metadata.name}?`} about="Its address leads nowhere then, and its tokens are void." submit="Delete it" close={() => setDrop(null)}
          run={async () => {
            const ok = await carryOut(`The preview ${drop.metadata.name} is deleted.`, "DELETE", `${path}/${encodeURIComponent(drop.metadata.name)}`);
            again();
            return ok;
          }} />
      )}
    </>
  );
}

function Make({ path, port, close, done }: { path: string; port: number; close: () => void; done: () => void }): VNode {
  const [name, setName] = useState("");
  const [to, setTo] = useState(String(port));
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const wrong = name.trim() === "" || !/^\d{1,5}$/.test(to);
  const submit = async (e: Event): Promise<void> => {
    e.preventDefault();
    if (wrong || busy) return;
    setBusy(true);
    const ok = await carryOut(`The preview ${name.trim()} is ready.`, "POST", path, { metadata: { name: name.trim() }, spec: { port: Number(to), public: open } });
    setBusy(false);
    if (!ok) return;
    done();
    close();
  };
  return (
    <Dialog title="New preview" close={close}>
      <form onSubmit={submit}>
        <p class="quiet">A preview leads to one port, and to nothing else. A visit wakes the sandbox.</p>
        <label for="preview-name">Name</label>
        <input id="preview-name" autofocus autocomplete="off" spellcheck={false} value={name} onInput={(e) => setName(e.currentTarget.value)} />
        <label for="preview-port">Port</label>
        <input id="preview-port" inputMode="numeric" autocomplete="off" value={to} onInput={(e) => setTo(e.currentTarget.value)} />
        <label for="preview-public">Who may visit it</label>
        <select id="preview-public" value={open ? "all" : "token"} onChange={(e) => setOpen(e.currentTarget.value === "all")}>
          <option value="token">Those who have a token</option>
          <option value="all">Everybody who knows the address</option>
        </select>
        <div class="buttons">
          <button type="button" onClick={close}>Cancel</button>
          <button type="submit" class="primary" disabled={wrong || busy}>{busy ? "Wait…" : "Make it"}</button>
        </div>
      </form>
    </Dialog>
  );
}

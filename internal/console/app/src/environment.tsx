// The variables, volumes and drives of a sandbox, as the record has them. The platform
// answers, so that looking wakes nothing.
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { may, type Sandbox, type Variable } from "./api";
import { mounts, type Mount } from "./inside";
import { Fault, reason } from "./ui";
import { visible } from "./visible";

/** What stands for the value of a secret variable in answers. */
const masked = "********";

/** Where a variable has its value from, or its value. */
function source(v: Variable): VNode {
  const from = v.valueFrom;
  if (from?.secretKeyRef) return <span class="quiet">the key {from.secretKeyRef.key} of the secret {from.secretKeyRef.name}</span>;
  if (from?.fieldRef) return <span class="quiet">the field {from.fieldRef.fieldPath}</span>;
  if (from?.resourceFieldRef) return <span class="quiet">the amount {from.resourceFieldRef.resource}</span>;
  if (v.secret || v.value === masked) return <span class="quiet">secret</span>;
  if (v.value === undefined) return <span class="quiet">no value</span>;
  return <code>{visible(v.value)}</code>;
}

export function EnvironmentView({ name, sandbox }: { name: string; sandbox: Sandbox }): VNode {
  const [drives, setDrives] = useState<Mount[] | null>(null);
  const [fault, setFault] = useState("");
  const inside = may("sandboxes:control");
  useEffect(() => {
    if (!inside) return;
    const stop = new AbortController();
    mounts(name, stop.signal).then(setDrives, (e: unknown) => stop.signal.aborted || setFault(reason(e)));
    return () => stop.abort();
  }, [name, inside]);
  const envs = sandbox.spec.runtime.envs ?? [];
  const volumes = sandbox.spec.volumes ?? [];
  return (
    <>
      <section class="card inside" aria-labelledby="variables">
        <h2 id="variables">Variables</h2>
        {envs.length === 0 ? <p class="empty">The record has no variables. Processes have those of the image.</p> : (
          <table class="rows">
            <thead><tr><th scope="col">Name</th><th scope="col">Value</th></tr></thead>
            <tbody>{envs.map((v, i) => <tr key={i}><th scope="row"><code>{v.name}</code></th><td>{source(v)}</td></tr>)}</tbody>
          </table>
        )}
        <p class="quiet">A process has those of the image and of the platform as well. Secret values are never shown here.</p>
      </section>
      <section class="card inside" aria-labelledby="mounted">
        <h2 id="mounted">Volumes and drives</h2>
        {fault && <Fault>{fault}</Fault>}
        {volumes.length === 0 && drives?.length === 0 && <p class="empty">Nothing is mounted.</p>}
        {(volumes.length > 0 || (drives?.length ?? 0) > 0) && (
          <table class="rows">
            <thead><tr><th scope="col">Mounted at</th><th scope="col">What it is</th></tr></thead>
            <tbody>
              {volumes.map((v) => <tr key={"v" + v.mountPath}><th scope="row"><code>{v.mountPath}</code></th><td>volume {v.name}</td></tr>)}
              {drives?.map((d) => <tr key={"d" + d.path}><th scope="row"><code>{d.path}</code></th><td>drive {d.drive}{d.readOnly && ", read-only"}</td></tr>)}
            </tbody>
          </table>
        )}
      </section>
    </>
  );
}

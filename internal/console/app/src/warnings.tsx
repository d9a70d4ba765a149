// What is amiss with the host, and what to do.
import { useEffect } from "preact/hooks";
import type { VNode } from "preact";
import { caller } from "./api";
import { checkup, fault, follow } from "./findings";
import { clock, plural } from "./format";
import { Fault } from "./ui";
import { visible } from "./visible";

const titled = (name: string): string => name.charAt(0).toUpperCase() + name.slice(1);

/** The warnings of the host: nothing if there are none, or if the caller may not see them. */
export function Warnings(): VNode | null {
  useEffect(follow, [caller.value]);
  const c = checkup.value;
  if (fault.value) return <Fault>What is amiss with the host is not known: {fault.value}</Fault>;
  if (!c || c.findings.length === 0) return null;
  // Errors first.
  const all = [...c.findings].sort((a, b) => a.severity.localeCompare(b.severity));
  return (
    <section class="warnings card" aria-labelledby="warnings">
      <h2 id="warnings">Warnings <span class="count">{c.findings.length}</span></h2>
      <ul>
        {all.map((f) => (
          <li key={f.name} class={f.severity}>
            <b>{titled(visible(f.name))}</b> <span class="severity">{f.severity}</span>
            <p>{visible(f.found)}</p>
            <p class="quiet">{visible(f.remedy)}</p>
          </li>
        ))}
      </ul>
      <p class="quiet">
        {plural(c.findings.length, "thing")} on {c.host ? <>the host <b>{visible(c.host)}</b></> : "the host of the platform"}, looked at {clock(c.checkedAt)}.
        {!c.sandboxes && " The host of the sandboxes is looked at by dozed doctor there."}
      </p>
    </section>
  );
}

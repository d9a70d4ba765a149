// What the processes of a sandbox wrote. The platform stores it, so reading it wakes nothing.
import { useEffect, useState } from "preact/hooks";
import type { VNode } from "preact";
import { get, type Answer } from "./api";
import { clock, moment } from "./format";
import { useTail } from "./tail";
import { Fault, reason } from "./ui";
import { printed } from "./visible";

export type LogLine = Answer<"LogLine">;

const lines = 200; // the newest ones
const every = 2500;

export function Output({ name }: { name: string }): VNode {
  const [all, setAll] = useState<LogLine[] | null>(null);
  const [search, setSearch] = useState("");
  const [errors, setErrors] = useState(false);
  const [fault, setFault] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const q = new URLSearchParams({ workloadIds: name, type: "process", limit: String(lines) });
    if (search.trim()) q.set("search", search.trim());
    if (errors) q.set("severity", "ERROR");
    const next = async (): Promise<void> => {
      if (!document.hidden) {
        try {
          const log = await get<Record<string, { logs: LogLine[] }>>("/observability/logs?" + q.toString(), stop.signal);
          setAll((log[name]?.logs ?? []).toReversed());
          setFault("");
        } catch (e) {
          if (stop.signal.aborted) return;
          setFault(reason(e));
        }
      }
      if (!stop.signal.aborted) timer = window.setTimeout(() => void next(), every);
    };
    timer = window.setTimeout(() => void next(), search ? 250 : 0); // a reader may still be typing
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [name, search, errors]);
  const tail = useTail(all);
  return (
    <section class="card output" aria-labelledby="output">
      <div class="line">
        <h2 id="output">Output of its processes</h2>
        <input type="search" aria-label="Search in the output" placeholder="Search" spellcheck={false} value={search} onInput={(e) => setSearch(e.currentTarget.value)} />
        <button type="button" class="small" aria-pressed={errors} onClick={() => setErrors(!errors)}>Errors only</button>
      </div>
      {fault && <Fault>{fault}</Fault>}
      {all?.length === 0 && <p class="empty">{search || errors ? "No line fits." : "Its processes wrote nothing that the platform has stored."}</p>}
      {all !== null && all.length > 0 && (
        <ol class="lines" {...tail} tabIndex={0} aria-label="Lines, the newest last">
          {all.map((l, i) => (
            <li key={i} class={l.severity === "ERROR" ? "bad" : ""}>
              <time dateTime={l.timestamp} title={moment(l.timestamp)}>{clock(l.timestamp)}</time>
              <span class="quiet">{l.process}</span>
              <code>{printed(l.message)}</code>
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}

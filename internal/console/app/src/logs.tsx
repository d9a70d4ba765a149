// The log of a sandbox: what its processes wrote, and its events. The platform stores it, so
// reading it wakes nothing.
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, type Answer } from "./api";
import { clock, moment, plural } from "./format";
import type { LogLine } from "./output";
import { ask, Fault, place, reason } from "./ui";
import { printed, visible } from "./visible";

type Log = Answer<"Log">;

const pageOf = 500;
const linesMax = 5000; // that the page shows
const typing = 250; // ms after which a reader has typed a word

const kinds: readonly [value: string, name: string][] = [["all", "Output and events"], ["process", "Output"], ["event", "Events"]];
const severities: readonly [value: string, name: string][] = [["", "All"], ["WARNING,ERROR", "Warnings and errors"], ["ERROR", "Errors"]];
const spans: readonly [hours: string, name: string][] = [["", "7 days"], ["24", "a day"], ["1", "an hour"]];

/** What the parameters of the address ask for. */
function question(name: string, q: URLSearchParams): URLSearchParams {
  const p = new URLSearchParams({ workloadIds: name, type: q.get("type") ?? "all", limit: String(pageOf) });
  for (const key of ["search", "severity", "process"]) {
    const v = q.get(key)?.trim();
    if (v) p.set(key, v);
  }
  const hours = Number(q.get("hours"));
  if (hours > 0) p.set("start", new Date(Date.now() - hours * 3_600_000).toISOString());
  return p;
}

export function LogsView({ name }: { name: string }): VNode {
  const q = place.value.query;
  const asked = q.toString();
  const [lines, setLines] = useState<LogLine[] | null>(null);
  const [cursor, setCursor] = useState("");
  const [turn, setTurn] = useState(0);
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(() => {
      get<Record<string, Log>>("/observability/logs?" + question(name, q).toString(), stop.signal).then(
        (all) => (setLines(all[name]?.logs ?? []), setCursor(all[name]?.nextCursor ?? ""), setFault("")),
        (e: unknown) => stop.signal.aborted || setFault(reason(e)),
      );
    }, lines ? typing : 0);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [name, asked, turn]);
  const set = (key: string, value: string): void => {
    const next = new URLSearchParams(q);
    if (value) next.set(key, value);
    else next.delete(key);
    ask(next);
  };
  const older = async (): Promise<void> => {
    setBusy(true);
    try {
      const p = question(name, q);
      p.set("cursor", cursor);
      const all = await get<Record<string, Log>>("/observability/logs?" + p.toString());
      setLines([...(lines ?? []), ...(all[name]?.logs ?? [])]);
      setCursor(all[name]?.nextCursor ?? "");
    } catch (e) {
      setFault(reason(e));
    }
    setBusy(false);
  };
  const choice = (key: string, label: string, values: readonly [string, string][]): VNode => (
    <label>
      <span class="unseen">{label}</span>
      <select value={q.get(key) ?? values[0]![0]} onChange={(e) => set(key, e.currentTarget.value)}>
        {values.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
      </select>
    </label>
  );
  return (
    <section class="card inside" aria-labelledby="logs">
      <div class="line">
        <h2 id="logs">Log</h2>
        <input class="narrow" type="search" aria-label="Search in the log" placeholder="Search" spellcheck={false} value={q.get("search") ?? ""} onInput={(e) => set("search", e.currentTarget.value)} />
        <input class="narrow" type="search" aria-label="Name of a process" placeholder="Process" spellcheck={false} value={q.get("process") ?? ""} onInput={(e) => set("process", e.currentTarget.value)} />
        {choice("type", "What is shown", kinds)}
        {choice("severity", "How severe", severities)}
        {choice("hours", "Of which time", spans)}
        <button type="button" class="small" onClick={() => setTurn(turn + 1)}>Refresh</button>
      </div>
      {fault && <Fault>{fault}</Fault>}
      {lines === null && !fault && <p class="quiet" role="status">Looking…</p>}
      {lines?.length === 0 && <p class="empty">No line fits.</p>}
      {lines !== null && lines.length > 0 && (
        <ol class="lines" tabIndex={0} aria-label="Lines, the newest first">
          {lines.map((l, i) => (
            <li key={i} class={l.severity === "ERROR" ? "bad" : ""}>
              <time dateTime={l.timestamp} title={clock(l.timestamp)}>{moment(l.timestamp)}</time>
              <span class="quiet">{visible(l.process ?? "event")}</span>
              <code>{printed(l.message)}</code>
            </li>
          ))}
        </ol>
      )}
      {lines !== null && (
        <p class="quiet" role="status">
          {plural(lines.length, "line")}, the newest first. Reading them wakes nothing.{" "}
          {cursor && lines.length < linesMax && <button type="button" class="small" disabled={busy} onClick={() => void older()}>Older lines</button>}
          {cursor && lines.length >= linesMax && "Search for older ones."}
        </p>
      )}
    </section>
  );
}

// The audit log: who changed what, and who was denied.
import { useState } from "preact/hooks";
import type { VNode } from "preact";
import type { Answer } from "./api";
import { moment } from "./format";
import { records, Status } from "./records";
import { save } from "./transfer";
import { ask, place, reason, tell } from "./ui";

type Line = Answer<"AuditLine">;

const filters = [
  { id: "actor", label: "Who", hint: "admin" },
  { id: "action", label: "Action", hint: "sandboxes.create" },
  { id: "object", label: "Object", hint: "web" },
] as const;
const times = [
  { id: "since", label: "From" },
  { id: "until", label: "To" },
] as const;
const outcomes = ["begun", "done", "failed", "denied"] as const;

/** What the API is asked, by the address of the page. Times there are those of the reader's clock. */
function asked(query: URLSearchParams): string {
  const q = new URLSearchParams();
  for (const { id } of filters) if (query.get(id)) q.set(id, query.get(id)!.trim());
  for (const { id } of times) {
    const t = new Date(query.get(id) ?? "");
    if (!Number.isNaN(t.getTime())) q.set(id, t.toISOString());
  }
  const outcome = query.get("outcome");
  if (outcome) q.set("outcome", outcome);
  return q.size ? "?" + q.toString() : "";
}

export const audit = records<Line>({
  title: "Lines",
  scope: "admin",
  path: (query) => "/audit" + asked(query),
  paged: true,
  id: (l) => l.id,
  words: () => "",
  columns: [
    { name: "When", show: (l) => <time dateTime={l.time}>{moment(l.time)}</time> },
    { name: "Who", show: (l) => <span title={l.actor?.key && `with the key ${l.actor.key}`}>{l.actor?.sub ?? l.actor?.type ?? "nobody"}{l.source && <div class="quiet wide-only">from {l.source}</div>}</span> },
    { name: "Action", show: (l) => <><code>{l.action}</code>{l.requestId && <div class="quiet wide-only">request <code>{l.requestId}</code></div>}</> },
    { name: "Object", show: (l) => l.object?.name ?? "" },
    { name: "Outcome", show: (l) => <><Status is={l.outcome} />{l.count ? ` ${l.count} times` : ""}{(l.error ?? l.detail) && <div class="quiet">{l.error ?? l.detail}</div>}</> },
  ],
  empty: "No line fits.",
});

/** The search in the log, and its export as a file. */
export function AuditTools(): VNode {
  const [busy, setBusy] = useState(false);
  const query = place.value.query;
  const set = (id: string, value: string): void => {
    const q = new URLSearchParams(query);
    if (value) q.set(id, value);
    else q.delete(id);
    ask(q);
  };
  const download = async (): Promise<void> => {
    setBusy(true);
    try {
      await save("/audit/export" + asked(query), `audit-${new Date().toISOString().slice(0, 10)}.jsonl`);
      tell("The lines are a file now, the oldest first.");
    } catch (e) {
      tell(reason(e), true);
    }
    setBusy(false);
  };
  return (
    <form class="card finds" role="search" aria-label="Search in the audit log" onSubmit={(e) => e.preventDefault()}>
      {filters.map((f) => (
        <label key={f.id}>{f.label}<input name={f.id} placeholder={f.hint} autocomplete="off" spellcheck={false} value={query.get(f.id) ?? ""} onChange={(e) => set(f.id, e.currentTarget.value)} /></label>
      ))}
      <label>
        Outcome
        <select name="outcome" value={query.get("outcome") ?? ""} onChange={(e) => set("outcome", e.currentTarget.value)}>
          <option value="">any</option>
          {outcomes.map((o) => <option key={o}>{o}</option>)}
        </select>
      </label>
      {times.map((t) => (
        <label key={t.id}>{t.label}<input name={t.id} type="datetime-local" step={1} value={query.get(t.id) ?? ""} onChange={(e) => set(t.id, e.currentTarget.value)} /></label>
      ))}
      <button type="button" disabled={busy} onClick={() => void download()}>{busy ? "Exporting…" : "Export these"}</button>
    </form>
  );
}

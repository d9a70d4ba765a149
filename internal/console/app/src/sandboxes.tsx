// All sandboxes in one table. Of 10,000 rows, it makes those that are seen.
import { useComputed, useSignal } from "@preact/signals";
import { Component, type VNode } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { ago, bytes, count, plural, took } from "./format";
import { counts, link, moved, rows, trouble, type Row } from "./live";
import { depth, tierName, tiers } from "./tiers";
import { ask, at, Dot, Fault, now, place } from "./ui";

const rowHeight = 44;
const beyond = 5; // rows above and below what is seen

interface Column {
  id: string;
  name: string;
  number?: boolean;
  /** Shown on narrow screens too. */
  always?: boolean;
  /** What rows are sorted by. The first click has the largest number on top. */
  key: (r: Row) => number;
  cell: (r: Row, now: number) => string | VNode;
}

const columns: readonly Column[] = [
  {
    id: "name", name: "Name", always: true, key: (r) => r.rank,
    cell: (r) => (
      <>
        <a href={at("sandboxes", r.name)}>{r.name}</a>
        {r.labels.length > 0 && <span class="labels">{r.labels.map((l) => <span key={l} class="label">{l}</span>)}</span>}
      </>
    ),
  },
  {
    id: "state", name: "State", always: true, key: (r) => (r.tier ? depth(r.tier) : 9),
    cell: (r) => <span class="state"><Dot tier={r.tier} />{stateName(r)}</span>,
  },
  { id: "memory", name: "Memory", number: true, key: (r) => r.memory, cell: (r) => (r.memory ? bytes(r.memory) : "–") },
  {
    id: "cpu", name: "Processor", number: true, key: (r) => (r.tier === "awake" ? r.busy : -1),
    cell: (r) => (r.tier !== "awake" ? "–" : `${Math.round(r.busy * 100)} %`),
  },
  { id: "disk", name: "Disk", number: true, key: (r) => r.disk, cell: (r) => (r.disk ? bytes(r.disk) : "–") },
  { id: "wakes", name: "Wakes/h", number: true, key: (r) => r.perHour, cell: (r) => (r.wakes ? (r.perHour >= 10 ? count(Math.round(r.perHour)) : r.perHour.toFixed(1)) : "–") },
  { id: "p99", name: "Wake p99", number: true, key: (r) => r.p99, cell: (r) => (r.p99 ? took(r.p99) : "–") },
  { id: "used", name: "Last use", number: true, always: true, key: (r) => r.used, cell: (r, now) => (r.tier === "awake" ? "now" : r.used ? ago(r.used, now) : "–") },
];

export const stateName = (r: { tier: string; status: string }): string =>
  tierName(r.tier) && r.status === "DEPLOYED" ? tierName(r.tier) : r.status.charAt(0) + r.status.slice(1).toLowerCase();

/** A word is in the name of a sandbox, or in a label. All words must be. */
function fits(r: Row, words: string[]): boolean {
  return words.every((w) => r.name.toLowerCase().includes(w) || r.labels.some((l) => l.toLowerCase().includes(w)));
}

function select(all: readonly Row[], q: URLSearchParams): Row[] {
  const words = (q.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const tier = q.get("tier");
  const out = all.filter((r) => (!tier || r.tier === tier) && fits(r, words));
  const sort = q.get("sort") ?? "name";
  const column = columns.find((c) => c.id === sort) ?? columns[0]!;
  const sign = (q.get("order") ?? firstOrder(column)) === "down" ? -1 : 1;
  return out.sort((a, b) => sign * (column.key(a) - column.key(b)) || a.rank - b.rank);
}

const firstOrder = (c: Column): "up" | "down" => (c.number ? "down" : "up");

export function Sandboxes(): VNode {
  const q = place.value.query;
  const text = q.toString();
  const found = useMemo(() => select(rows.value, q), [rows.value, text]);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    document.title = "Sandboxes – Doze";
    const slash = (e: KeyboardEvent): void => {
      if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || e.target instanceof HTMLInputElement || e.target instanceof HTMLSelectElement) return;
      e.preventDefault();
      field.current?.focus();
    };
    addEventListener("keydown", slash);
    return () => removeEventListener("keydown", slash);
  }, []);
  const set = (name: string, value: string): void => {
    const next = new URLSearchParams(q);
    if (value) next.set(name, value);
    else next.delete(name);
    ask(next);
  };
  const tier = q.get("tier") ?? "";
  const all = rows.value.length;
  return (
    <section aria-label="Sandboxes" class="sandboxes">
      <div class="bar">
        <h1>Sandboxes</h1>
        <p class="quiet" role="status">{found.length === all ? plural(all, "sandbox", "sandboxes") : `${count(found.length)} of ${plural(all, "sandbox", "sandboxes")}`}</p>
      </div>
      <div class="filters">
        <input
          ref={field} type="search" aria-label="Search by name or label" placeholder="Search by name or label ( / )" spellcheck={false}
          value={q.get("q") ?? ""} onInput={(e) => set("q", e.currentTarget.value)}
        />
        <div class="choices" role="group" aria-label="State">
          <button type="button" aria-pressed={tier === ""} onClick={() => set("tier", "")}>All</button>
          {tiers.filter((t) => tier === t.id || counts.value.get(t.id)).map((t) => (
            <button key={t.id} type="button" aria-pressed={tier === t.id} onClick={() => set("tier", tier === t.id ? "" : t.id)}>
              <Dot tier={t.id} />{t.name} <span class="quiet">{count(counts.value.get(t.id) ?? 0)}</span>
            </button>
          ))}
        </div>
      </div>
      {link.value === "denied" && <Fault>{trouble.value}</Fault>}
      <Table found={found} q={q} />
    </section>
  );
}

function Table({ found, q }: { found: Row[]; q: URLSearchParams }): VNode {
  const box = useRef<HTMLDivElement>(null);
  const top = useSignal(0);
  const height = useSignal(600);
  useEffect(() => {
    const el = box.current;
    if (!el) return;
    const watch = new ResizeObserver(() => (height.value = el.clientHeight));
    watch.observe(el);
    return () => watch.disconnect();
  }, []);
  // A change of what is asked for begins at the top.
  const asked = `${q.get("q")} ${q.get("tier")} ${q.get("sort")} ${q.get("order")}`;
  useEffect(() => {
    top.value = 0;
    if (box.current) box.current.scrollTop = 0;
  }, [asked]);
  // It changes once for each row that comes, and not with each pixel.
  const first = useComputed(() => Math.max(0, Math.floor(top.value / rowHeight) - beyond));
  const shown = useComputed(() => Math.ceil(height.value / rowHeight) + 2 * beyond);
  const from = Math.min(first.value, Math.max(0, found.length - shown.value));
  const seen = found.slice(from, from + shown.value);
  const by = columns.find((c) => c.id === (q.get("sort") ?? "name")) ?? columns[0]!;
  const order = q.get("order") ?? firstOrder(by);
  const sort = (c: Column): void => {
    const next = new URLSearchParams(q);
    next.set("sort", c.id);
    next.set("order", c === by ? (order === "up" ? "down" : "up") : firstOrder(c));
    ask(next);
  };
  const t = now.value;
  return (
    <div ref={box} class="table card" tabIndex={0} role="region" aria-label="Table of sandboxes" onScroll={(e) => (top.value = e.currentTarget.scrollTop)}>
      <table aria-rowcount={found.length + 1}>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((c) => (
              <th key={c.id} scope="col" class={kind(c)} aria-sort={c === by ? (order === "up" ? "ascending" : "descending") : undefined}>
                <button type="button" onClick={() => sort(c)}>{c.name}<span class="arrow" aria-hidden="true">{c === by ? (order === "up" ? "↑" : "↓") : ""}</span></button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {from > 0 && <tr class="space" aria-hidden="true" style={{ height: `${from * rowHeight}px` }}><td colSpan={columns.length} /></tr>}
          {seen.map((r, i) => (
            <Line key={(from + i) % shown.value} row={r} index={from + i + 2} moved={moved.value.has(r.name)} now={t} />
          ))}
          {from + seen.length < found.length && (
            <tr class="space" aria-hidden="true" style={{ height: `${(found.length - from - seen.length) * rowHeight}px` }}><td colSpan={columns.length} /></tr>
          )}
        </tbody>
      </table>
      {found.length === 0 && link.value !== "first" && (
        <p class="empty">{rows.value.length === 0 ? "There is no sandbox in this workspace." : "No sandbox fits. Change the search or the state."}</p>
      )}
    </div>
  );
}

interface LineProps {
  row: Row;
  index: number;
  moved: boolean;
  now: number;
}

/** One row. It is made anew if something in it differs. */
class Line extends Component<LineProps> {
  override shouldComponentUpdate(next: LineProps): boolean {
    const p = this.props;
    return next.row !== p.row || next.index !== p.index || next.moved !== p.moved || next.now !== p.now;
  }

  render({ row, index, moved, now }: LineProps): VNode {
    return (
      <tr aria-rowindex={index} class={moved ? "moved" : ""} data-name={row.name}>
        {columns.map((c) => <td key={c.id} class={kinds.get(c)}>{c.cell(row, now)}</td>)}
      </tr>
    );
  }
}

const kind = (c: Column): string => `${c.number ? "number" : ""} ${c.always ? "" : "wide-only"} c-${c.id}`;
const kinds = new Map(columns.map((c) => [c, kind(c)]));

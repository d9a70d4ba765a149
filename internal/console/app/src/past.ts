// What the platform did: its history, as the views show it. Only operators get one.
import { signal } from "@preact/signals";
import { get, Refusal, type History } from "./api";
import { reason } from "./ui";

export interface Range {
  id: string;
  name: string;
  seconds: number;
  step: number;
}

export const ranges: readonly Range[] = [
  { id: "1h", name: "1 hour", seconds: 3600, step: 60 },
  { id: "6h", name: "6 hours", seconds: 6 * 3600, step: 300 },
  { id: "24h", name: "24 hours", seconds: 86_400, step: 900 },
  { id: "7d", name: "7 days", seconds: 7 * 86_400, step: 7200 },
  { id: "30d", name: "30 days", seconds: 30 * 86_400 - 60, step: 21_600 },
];

export const range = signal<Range>(ranges[0]!);

export interface Past {
  history: History | null;
  /** The host as it was in the last recorded step of 10 seconds. */
  host: History | null;
  /** The last hours, for what a wake takes lately. */
  hours: History | null;
  /** The caller is no operator, or the platform stores no history. */
  none: boolean;
  fault: string;
}

export const past = signal<Past>({ history: null, host: null, hours: null, none: false, fault: "" });

/** Leaves nothing for the next session. */
export function forget(): void {
  past.value = { history: null, host: null, hours: null, none: false, fault: "" };
}

const hostNames = "memory_committed,memory_committed_max,host_memory_available,swap,disk_free,disk_reserve,warm_machines,checkpoints,sandboxes";
const since = (seconds: number): string => new Date(Date.now() - seconds * 1000).toISOString();

async function read(stop: AbortSignal): Promise<void> {
  const r = range.value;
  try {
    const [history, host, hours] = await Promise.all([
      get<History>(`/platform/history?from=${since(r.seconds)}&step=${r.step}s`, stop),
      get<History>(`/platform/history?series=${hostNames}&from=${since(120)}&step=10s`, stop),
      get<History>(`/platform/history?series=wakes_p50&from=${since(23 * 3600)}&step=3600s`, stop),
    ]);
    if (r === range.value) past.value = { history, host, hours, none: false, fault: "" };
  } catch (e) {
    if (stop.aborted) return;
    const none = e instanceof Refusal && (e.status === 403 || e.status === 501);
    past.value = { ...(none ? { history: null, host: null, hours: null } : past.value), none, fault: none ? "" : reason(e) };
  }
}

/** Reads the history again and again, until the function that it returns is called. */
export function follow(): () => void {
  const stop = new AbortController();
  let timer = 0;
  const next = async (): Promise<void> => {
    if (!document.hidden) await read(stop.signal);
    if (!stop.signal.aborted && !past.value.none) timer = window.setTimeout(() => void next(), 10_000);
  };
  void next();
  return () => {
    clearTimeout(timer);
    stop.abort();
  };
}

/** The values of a series, added up over all its labels that fit. */
export function sum(h: History, name: string, fits: (label: string) => boolean = () => true): (number | null)[] {
  const n = h.series[0]?.values.length ?? 0;
  const out: (number | null)[] = Array.from({ length: n }, () => null);
  for (const s of h.series) {
    if (s.name !== name || !fits(Object.values(s.labels ?? {})[0] ?? "")) continue;
    s.values.forEach((v, i) => {
      if (v !== null) out[i] = (out[i] ?? 0) + v;
    });
  }
  return out;
}

export const total = (all: (number | null)[]): number => all.reduce<number>((n, v) => n + (v ?? 0), 0);

/** The last value that was recorded, or null. */
export function latest(h: History | null, name: string): number | null {
  return h ? (sum(h, name).findLast((v) => v !== null) ?? null) : null;
}

/** The values of a label of a series. */
export function labels(h: History, name: string): string[] {
  return h.series.filter((s) => s.name === name).map((s) => Object.values(s.labels ?? {})[0] ?? "");
}

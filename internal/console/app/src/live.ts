// All sandboxes of the workspace, as they are now. The platform has no feed of its own for
// callers. So this asks for the usage of all, again and again while somebody looks: that
// wakes no sandbox. A hidden page asks for nothing.
import { computed, signal } from "@preact/signals";
import { get, Refusal, session, type List, type Sandbox, type Usage } from "./api";

/** What the page knows of a sandbox in a list. */
export interface Row {
  name: string;
  /** Its place among all names. It is worked out when names come or go: to compare texts is slow. */
  rank: number;
  status: string;
  tier: string;
  /** The labels, each as key=value. */
  labels: string[];
  image: string;
  created: number;
  used: number;
  memory: number;
  swap: number;
  limit: number;
  /** The share of its processors that it takes, 0 to 1. It is null until there are two measurements. */
  busy: number | null;
  disk: number;
  wakes: number;
  failures: number;
  perHour: number;
  p99: number;
  seconds: number;
  measured: number;
  since: string;
}

export type Link = "first" | "live" | "cut" | "denied";

const pageOf = 200; // the most that the platform gives
const restMin = 1500; // ms between two rounds
const recordsEvery = 30_000; // ms between two rounds over the records, which have labels and last uses
const waitMax = 30_000;

const known = new Map<string, Row>();
/** It changes with each round. */
export const round = signal(0);
export const link = signal<Link>("first");
/** Why the connection is cut, or the list denied. */
export const trouble = signal("");
/** When the last whole round ended. */
export const seen = signal(0);
export const rows = computed<readonly Row[]>(() => (round.value, [...known.values()]));
/** Names of sandboxes whose tier changed in the last round, with the tier before. */
export const moved = signal<ReadonlyMap<string, string>>(new Map());

export const counts = computed(() => {
  const n = new Map<string, number>();
  for (const r of rows.value) n.set(r.tier, (n.get(r.tier) ?? 0) + 1);
  return n;
});

/** Whether a sandbox can be in the picture: others have no machine. */
export const placed = (r: Row): boolean => r.tier !== "";

function blank(name: string): Row {
  return {
    name, rank: 0, status: "", tier: "", labels: [], image: "", created: 0, used: 0, memory: 0, swap: 0, limit: 0, busy: null, disk: 0,
    wakes: 0, failures: 0, perHour: 0, p99: 0, seconds: 0, measured: 0, since: "",
  };
}

function measure(u: Usage, before: Row | undefined): Row {
  const r = before ? { ...before } : blank(u.name);
  const at = Date.parse(u.measuredAt);
  const sum = u.processor.seconds;
  r.busy = null;
  if (before?.measured && before.since === u.countedSince && at > before.measured && sum >= before.seconds && u.processor.limit > 0) {
    r.busy = Math.min(1, ((sum - before.seconds) / ((at - before.measured) / 1000)) / u.processor.limit);
  }
  r.status = u.status;
  r.tier = u.tier;
  r.memory = u.memory.residentBytes;
  r.swap = u.memory.swapBytes;
  r.limit = u.memory.limitBytes;
  r.disk = u.disk.checkpointBytes + u.disk.scratchBytes + u.disk.volumeBytes + u.disk.driveBytes + u.disk.archiveBytes;
  r.wakes = u.wakes.count;
  r.failures = u.wakes.failures;
  const hours = (at - Date.parse(u.countedSince)) / 3_600_000;
  r.perHour = u.wakes.count / Math.max(hours, 1); // of a shorter time, nobody knows a rate
  r.p99 = u.wakes.p99Us;
  r.seconds = sum;
  r.measured = at;
  r.since = u.countedSince;
  return r;
}

function describe(r: Row, s: Sandbox): Row {
  return {
    ...r,
    labels: Object.entries(s.metadata.labels ?? {}).map(([k, v]) => `${k}=${v}`),
    image: s.spec.runtime.image ?? "",
    created: Date.parse(s.metadata.createdAt ?? "") || 0,
    used: Date.parse(s.lastUsedAt ?? s.metadata.createdAt ?? "") || 0,
  };
}

async function* pages<T>(path: string, stop: AbortSignal): AsyncGenerator<T[]> {
  for (let cursor = ""; ; ) {
    const page: List<T> = await get<List<T>>(`${path}?limit=${pageOf}${cursor ? "&cursor=" + encodeURIComponent(cursor) : ""}`, stop);
    yield page.data;
    cursor = page.meta.nextCursor ?? "";
    if (!cursor) return;
  }
}

let recordsAt = 0;
const names = new Intl.Collator("en", { numeric: true });

function order(): void {
  [...known.values()].sort((a, b) => names.compare(a.name, b.name)).forEach((r, i) => (r.rank = i));
}

async function measureAll(stop: AbortSignal): Promise<void> {
  const here = new Set<string>();
  const moves = new Map<string, string>();
  const first = known.size === 0;
  let fresh = false;
  for await (const page of pages<Usage>("/usage/sandboxes", stop)) {
    for (const u of page) {
      const before = known.get(u.name);
      const r = measure(u, before);
      fresh ||= !before;
      if (before && before.tier !== r.tier) moves.set(u.name, before.tier);
      here.add(u.name);
      known.set(u.name, r);
    }
    if (first) {
      order();
      round.value++; // a long list shows as it comes
    }
  }
  for (const name of known.keys()) if (!here.has(name)) known.delete(name);
  if (fresh) order();
  if (fresh || Date.now() - recordsAt > recordsEvery) {
    for await (const page of pages<Sandbox>("/sandboxes", stop)) {
      for (const s of page) {
        const r = known.get(s.metadata.name);
        if (r) known.set(r.name, describe(r, s));
      }
      if (first) round.value++;
    }
    recordsAt = Date.now();
  }
  moved.value = moves;
  seen.value = Date.now();
  round.value++;
}

let kicked: (() => void) | null = null;

/** Asks at once: somebody did something. */
export function look(): void {
  kicked?.();
}

function rest(ms: number, stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      stop.removeEventListener("abort", done);
      kicked = null;
      resolve();
    };
    const timer = setTimeout(done, ms);
    stop.addEventListener("abort", done);
    kicked = done;
  });
}

/** Waits until somebody looks. */
export function shown(stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const check = (): void => {
      if (document.hidden && !stop.aborted) return;
      document.removeEventListener("visibilitychange", check);
      stop.removeEventListener("abort", check);
      resolve();
    };
    document.addEventListener("visibilitychange", check);
    stop.addEventListener("abort", check);
    check();
  });
}

async function follow(stop: AbortSignal): Promise<void> {
  for (let failures = 0; !stop.aborted; ) {
    await shown(stop);
    const began = performance.now();
    let wait = restMin;
    try {
      await measureAll(stop);
      if (stop.aborted) return;
      failures = 0;
      link.value = "live";
      trouble.value = "";
      wait = Math.max(restMin, 2 * (performance.now() - began)); // a long list takes a third of the time at most
    } catch (e) {
      if (stop.aborted) return;
      failures++;
      const refusal = e instanceof Refusal ? e : new Refusal(0, String(e));
      link.value = refusal.status === 403 ? "denied" : "cut";
      trouble.value = refusal.message;
      wait = Math.max(refusal.retryAfter * 1000, Math.min(waitMax, 1000 * 2 ** (failures - 1)));
    }
    await rest(wait, stop);
  }
}

let stopper: AbortController | null = null;

/** Follows the workspace of the session until the next call, or the end of the session. */
export function restart(): void {
  stopper?.abort();
  known.clear();
  recordsAt = 0;
  moved.value = new Map();
  link.value = "first";
  round.value++;
  if (!session.value) return;
  stopper = new AbortController();
  void follow(stopper.signal);
}

addEventListener("online", look);

// All sandboxes of the workspace, as they are now. The feed of the platform says what
// changes, and wakes no sandbox. A page that is hidden for long reads nothing.
import { computed, signal } from "@preact/signals";
import { Refusal, session, stream, type FeedMessage, type FeedSandbox } from "./api";
import { events } from "./events";

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
  /** The share of its processors that it takes, 0 to 1. */
  busy: number;
  disk: number;
  wakes: number;
  failures: number;
  perHour: number;
  p99: number;
  /** As the feed has it. */
  feed: FeedSandbox;
}

export type Link = "first" | "live" | "cut" | "denied";

const hiddenMax = 60_000; // ms that a hidden page goes on reading
const silenceMax = 40_000; // ms without a word: the platform sends one every 15 seconds
const waitMin = 500;
const waitMax = 30_000;

const known = new Map<string, Row>();
/** It changes with each batch of messages. */
export const round = signal(0);
export const link = signal<Link>("first");
/** Why the connection is cut, or the list denied. */
export const trouble = signal("");
export const rows = computed<readonly Row[]>(() => (round.value, [...known.values()]));
/** Names of sandboxes that changed their tier, or woke for a moment, in the last batch. */
export const moved = signal<ReadonlySet<string>>(new Set());
/** One sandbox, or nothing while the feed does not have it. */
export const find = (name: string): Row | undefined => (round.value, known.get(name));

export const counts = computed(() => {
  const n = new Map<string, number>();
  for (const r of rows.value) n.set(r.tier, (n.get(r.tier) ?? 0) + 1);
  return n;
});

/** Whether a sandbox can be in the picture: others have no machine. */
export const placed = (r: Row): boolean => r.tier !== "";

function rowOf(u: FeedSandbox, before: Row | undefined, at: number): Row {
  const hours = (at - Date.parse(u.countedSince)) / 3_600_000;
  const created = Date.parse(u.createdAt) || 0;
  return {
    name: u.name, rank: before?.rank ?? 0, status: u.status, tier: u.tier,
    labels: Object.entries(u.labels ?? {}).map(([k, v]) => `${k}=${v}`), image: u.image, created, used: Date.parse(u.lastUsedAt) || created,
    memory: u.memory.residentBytes, swap: u.memory.swapBytes, limit: u.memory.limitBytes, busy: u.busy,
    disk: u.disk.checkpointBytes + u.disk.storageBytes + u.disk.scratchBytes + u.disk.volumeBytes + u.disk.driveBytes + u.disk.archiveBytes,
    wakes: u.wakes.count, failures: u.wakes.failures, perHour: u.wakes.count / Math.max(hours, 1), // of a shorter time, nobody knows a rate
    p99: u.wakes.p99Us, feed: u,
  };
}

const names = new Intl.Collator("en", { numeric: true });

function order(): void {
  [...known.values()].sort((a, b) => names.compare(a.name, b.name)).forEach((r, i) => (r.rank = i));
}

/** What a stream has told so far. */
class Reading {
  /** Names in a state that has not ended yet. */
  private here: Set<string> | null = null;
  private fresh = false;
  private moves = new Set<string>();

  take(event: string, m: FeedMessage): void {
    const at = Date.parse(m.at);
    if (event === "state") this.here ??= new Set();
    for (const u of m.sandboxes ?? []) {
      const before = known.get(u.name);
      this.fresh ||= !before;
      if (before && (before.tier !== u.tier || before.wakes < u.wakes.count)) this.moves.add(u.name);
      this.here?.add(u.name);
      known.set(u.name, rowOf(u, before, at));
    }
    for (const name of m.gone ?? []) known.delete(name);
    if (event === "complete") {
      const here = this.here ?? new Set();
      for (const name of known.keys()) if (!here.has(name)) known.delete(name);
      this.here = null;
      link.value = "live";
    }
  }

  /** Shows what came. A long state shows as it comes. */
  show(): void {
    if (this.fresh && (this.here === null || known.size <= 200)) { // sorting is slow: not with each part
      order();
      this.fresh = false;
    }
    moved.value = this.moves;
    this.moves = new Set();
    round.value++;
  }
}

/** The id of the last message, to go on after a cut. */
let last = "";

/** Reads until the stream ends, for whatever reason. */
async function read(stop: AbortSignal, opened: () => void): Promise<void> {
  const own = new AbortController();
  const abort = (): void => own.abort();
  stop.addEventListener("abort", abort);
  let silence = setTimeout(abort, silenceMax);
  let hiding = 0;
  const hide = (): void => {
    clearTimeout(hiding);
    if (document.hidden) hiding = window.setTimeout(abort, hiddenMax);
  };
  document.addEventListener("visibilitychange", hide);
  try {
    const reading = new Reading();
    const body = await stream("/feed?follow=true", last, own.signal);
    if (last) link.value = "live"; // it goes on where it was, or says state at once
    trouble.value = "";
    opened();
    for await (const batch of events(body)) {
      clearTimeout(silence);
      silence = setTimeout(abort, silenceMax);
      for (const e of batch) {
        reading.take(e.event, JSON.parse(e.data) as FeedMessage);
        if (e.event !== "state") last = e.id;
      }
      if (batch.length > 0) reading.show();
    }
  } finally {
    own.abort();
    clearTimeout(silence);
    clearTimeout(hiding);
    stop.removeEventListener("abort", abort);
    document.removeEventListener("visibilitychange", hide);
  }
}

let kicked: (() => void) | null = null;

/** Tries again at once, if the connection is cut. */
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
    let wait = waitMin;
    try {
      await read(stop, () => (failures = 0));
    } catch (e) {
      if (stop.aborted) return;
      failures++;
      const refusal = e instanceof Refusal ? e : new Refusal(0, "The connection to the platform was cut.");
      if (refusal.status !== 0 || link.value !== "live") { // a cut alone is no trouble: the next try says
        link.value = refusal.status === 403 ? "denied" : "cut";
        trouble.value = refusal.message;
      } else if (failures > 1 || e instanceof Refusal) {
        link.value = "cut";
        trouble.value = refusal.message;
      }
      wait = Math.max(refusal.retryAfter * 1000, Math.min(waitMax, waitMin * 2 ** (failures - 1)));
    }
    await rest(wait * (1 + Math.random() / 4), stop); // tabs must not come all at once
  }
}

let stopper: AbortController | null = null;

/** Follows the workspace of the session until the next call, or the end of the session. */
export function restart(): void {
  stopper?.abort();
  known.clear();
  last = "";
  moved.value = new Set();
  link.value = "first";
  round.value++;
  if (!session.value) return;
  stopper = new AbortController();
  void follow(stopper.signal);
}

addEventListener("online", look);

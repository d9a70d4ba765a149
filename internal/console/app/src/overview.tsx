// How all of it is: who sleeps how deeply, what the host has left, and how fast wakes are.
import { useEffect, useMemo } from "preact/hooks";
import type { VNode } from "preact";
import type { History } from "./api";
import { bytes, count, plural, took } from "./format";
import { counts, link, placed, rows, trouble } from "./live";
import { follow, labels, latest, past, range, ranges, sum, total } from "./past";
import { Picture } from "./picture";
import { Plot, type Line } from "./plot";
import { Reserves } from "./reserves";
import { tiers, tint } from "./tiers";
import { Fault } from "./ui";
import { Warnings } from "./warnings";

export function Overview(): VNode {
  useEffect(() => {
    document.title = "Overview – Doze";
  }, []);
  useEffect(follow, [range.value]);
  const p = past.value;
  const wakes = useMemo(() => medians(p.hours), [p.hours]);
  return (
    <>
      <Headline />
      <Warnings />
      {link.value === "denied" && <Fault>{trouble.value}</Fault>}
      <section aria-label="Sandboxes by the depth of their sleep" class="card">
        <Picture wakes={wakes} />
      </section>
      {p.host && <Host h={p.host} />}
      {p.fault && <Fault>{p.fault}</Fault>}
      {p.none && <p class="quiet note">The host and its history are shown to admins of the first workspace, where the platform stores one.</p>}
      {p.history && <Plots h={p.history} />}
    </>
  );
}

function Headline(): VNode {
  const n = rows.value.filter(placed).length;
  const awake = counts.value.get("awake") ?? 0;
  const memory = rows.value.reduce((m, r) => m + r.memory, 0);
  const limit = rows.value.reduce((m, r) => m + (r.tier ? r.limit : 0), 0);
  return (
    <div class="headline">
      <h1>{n === 0 ? (link.value === "first" ? "Looking…" : "No sandboxes yet") : <>{count(n - awake)} of {plural(n, "sandbox", "sandboxes")} asleep</>}</h1>
      {n > 0 && (
        <p class="quiet">
          They take <b>{bytes(memory)}</b> of memory now. Awake, they may take up to <b>{bytes(limit)}</b>.
        </p>
      )}
      {n === 0 && link.value === "live" && <p class="quiet">Create one: <code>doze sandbox create hello</code></p>}
    </div>
  );
}

/** What half of the wakes of each tier took at most, in the last hour that had one. */
function medians(h: History | null): Map<string, string> {
  const m = new Map<string, string>();
  for (const s of h?.series ?? []) {
    const v = s.values.findLast((v) => v !== null);
    if (v !== null && v !== undefined) m.set(s.labels?.tier ?? "", took(v * 1e6));
  }
  return m;
}

function Host({ h }: { h: History }): VNode {
  const committed = latest(h, "memory_committed");
  const most = latest(h, "memory_committed_max");
  const available = latest(h, "host_memory_available");
  const swap = latest(h, "swap");
  const free = latest(h, "disk_free");
  const reserve = latest(h, "disk_reserve");
  const checkpoints = latest(h, "checkpoints");
  const warm = latest(h, "warm_machines");
  return (
    <section aria-label="The host" class="tiles">
      {committed !== null && most !== null && most > 0 && (
        <Tile name="Memory reserved" value={bytes(committed)} about={`of ${bytes(most)}; ${bytes(Math.max(0, most - committed))} are left for wakes and creates`} share={committed / most} />
      )}
      {available !== null && <Tile name="Memory free on the host" value={bytes(available)} about="can be taken without swapping" />}
      {free !== null && reserve !== null && <Tile name="Disk free" value={bytes(free)} about={`${bytes(reserve)} of it stay free`} />}
      {checkpoints !== null && <Tile name="Checkpoints" value={bytes(checkpoints)} about="on disk, of sandboxes that sleep" />}
      {swap !== null && swap > 0 && <Tile name="Swap" value={bytes(swap)} about="taken by sandboxes that sleep" />}
      {warm !== null && <Tile name="Warm pool" value={count(warm)} about={`${warm === 1 ? "machine" : "machines"} ready for the next create`} />}
    </section>
  );
}

function Tile({ name, value, about, share }: { name: string; value: string; about: string; share?: number }): VNode {
  return (
    <div class="tile card">
      <h2>{name}</h2>
      <p class="value">{value}</p>
      {share !== undefined && <meter min={0} max={1} high={0.8} optimum={0} value={Math.min(1, share)} aria-label={`${name}: ${Math.round(share * 100)} %`} />}
      <p class="quiet">{about}</p>
    </div>
  );
}

const milliseconds = (s: number): string => took(s * 1e6);
const whole = (n: number): string => (n >= 10 || Number.isInteger(n) ? count(Math.round(n)) : n.toFixed(1));

function Plots({ h }: { h: History }): VNode {
  const p = useMemo(() => {
    const begin = Date.parse(h.from) / 1000;
    const n = h.series[0]?.values.length ?? 0;
    const times = Array.from({ length: n }, (_, i) => begin + i * h.step);
    const byTier = (name: string): Line[] =>
      tiers.filter((t) => labels(h, name).includes(t.id)).map((t) => ({ label: t.name, tint: tint(t.id), values: sum(h, name, (l) => l === t.id) }));
    // A step that is not over has only a part of its counts.
    const unfinished = Date.parse(h.to) > Date.now() - 10_000;
    const rate = (name: string): (number | null)[] => sum(h, name).map((v, i) => (v === null || (unfinished && i === n - 1) ? null : (v * 60) / h.step));
    const wakes = tiers
      .filter((t) => labels(h, "wakes_p50").includes(t.id) && sum(h, "wakes_p50", (l) => l === t.id).some((v) => v !== null))
      .flatMap((t): Line[] => [
        { label: `${t.name} p50`, tint: tint(t.id), values: sum(h, "wakes_p50", (l) => l === t.id) },
        { label: `${t.name} p99`, tint: tint(t.id), values: sum(h, "wakes_p99", (l) => l === t.id), dashed: true },
      ]);
    return {
      times, wakes, sandboxes: byTier("sandboxes"), memory: byTier("memory"),
      rates: [
        { label: "Wakes", tint: "--tier-awake", values: rate("wakes") },
        { label: "Creates", tint: "--accent", values: rate("creates") },
      ] satisfies Line[],
    };
  }, [h]);
  const name = range.value.name;
  return (
    <section aria-label="History">
      <div class="bar">
        <h2>The last {name === "1 hour" ? "hour" : name}</h2>
        <div class="choices" role="group" aria-label="Time">
          {ranges.map((r) => (
            <button key={r.id} type="button" aria-pressed={r === range.value} onClick={() => (range.value = r)}>{r.name}</button>
          ))}
        </div>
      </div>
      <div class="plots">
        <Plot title="How long wakes take" about="from the request to the sandbox that takes it" times={p.times} lines={p.wakes} say={milliseconds} logarithmic empty="No sandbox woke in this time." />
        <Plot title="Sandboxes" about="of all workspaces, by where their memory is" times={p.times} lines={p.sandboxes} say={whole} stacked empty="There was no sandbox in this time." />
        <Plot title="Wakes and creates per minute" times={p.times} lines={p.rates} say={whole} empty="Nothing woke, and nothing was created." />
        <Plot title="Memory that sandboxes take" about="of the host, by the depth of their sleep" times={p.times} lines={p.memory} say={bytes} stacked empty="Sandboxes took no memory in this time." />
        <Reserves h={h} times={p.times} />
      </div>
      <Troubles h={h} />
    </section>
  );
}

/** What did not work, or was refused. */
function Troubles({ h }: { h: History }): VNode {
  const all: [what: string, n: number][] = [
    ...labels(h, "wake_failures").map((l): [string, number] => [`Wakes that failed: ${l.replaceAll("_", " ")}`, total(sum(h, "wake_failures", (x) => x === l))]),
    ["Sleeps that failed", total(sum(h, "sleep_failures"))],
    ["Refused for want of memory", total(sum(h, "memory_refusals"))],
    ["Refused by a quota", total(sum(h, "quota_refusals"))],
    ["Connections to the outside that the rules refused", total(sum(h, "egress_decisions", (l) => l === "deny"))],
  ];
  const some = all.filter(([, n]) => n > 0);
  return (
    <div class="card">
      <h3>Failures and refusals</h3>
      {some.length === 0 ? (
        <p class="good">None in this time.</p>
      ) : (
        <table class="facts">
          <thead class="unseen"><tr><th scope="col">What</th><th scope="col">How often</th></tr></thead>
          <tbody>{some.map(([what, n]) => <tr key={what}><th scope="row">{what}</th><td>{whole(n)}</td></tr>)}</tbody>
        </table>
      )}
    </div>
  );
}

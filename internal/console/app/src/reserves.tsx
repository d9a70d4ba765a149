// What the platform has in reserve, and what it lacked: machines that were ready, room in
// memory and on disk, and wakes that failed.
import { useMemo } from "preact/hooks";
import type { VNode } from "preact";
import type { History } from "./api";
import { bytes, count } from "./format";
import { labels, sum } from "./past";
import { Plot, type Line } from "./plot";

const tints = ["--tier-awake", "--accent", "--tier-saved", "--tier-swapped", "--tier-disk", "--tier-paused"];

const words: Record<string, string> = { spare: "Of a machine that was ready", image: "Booted from an image", snapshot: "Of a snapshot" };
const titled = (label: string): string => words[label] ?? label.charAt(0).toUpperCase() + label.slice(1).replaceAll("_", " ");

/** One line for each label of a series that has a number above 0. */
function each(h: History, name: string): Line[] {
  return labels(h, name)
    .map((l, i): Line => ({ label: titled(l), tint: tints[i % tints.length]!, values: sum(h, name, (x) => x === l) }))
    .filter((line) => line.values.some((v) => v !== null && v > 0));
}

export function Reserves({ h, times }: { h: History; times: number[] }): VNode {
  const p = useMemo(() => {
    const line = (label: string, tint: string, name: string): Line => ({ label, tint, values: sum(h, name) });
    return {
      failures: each(h, "wake_failures"),
      creates: each(h, "creates"),
      pool: [line("Ready", "--accent", "warm_machines")],
      room: [line("Memory free", "--accent", "host_memory_available"), line("Disk free", "--tier-disk", "disk_free"), line("Swap taken", "--tier-swapped", "swap")],
    };
  }, [h]);
  const numbers = (n: number): string => count(Math.round(n));
  return (
    <>
      <Plot title="Warm pool" about="machines that were started ahead, for the next create" times={times} lines={p.pool} say={numbers} empty="No machine was started ahead." />
      <Plot title="What creates took" about="a create that found no ready machine booted one" times={times} lines={p.creates} say={numbers} stacked empty="Nothing was created." />
      <Plot title="Room that is left" about="on the host, and the swap that sandboxes take" times={times} lines={p.room} say={bytes} empty="Nothing was recorded." />
      <Plot title="Wakes that failed" about="by their reason" times={times} lines={p.failures} say={numbers} empty="No wake failed in this time." />
    </>
  );
}

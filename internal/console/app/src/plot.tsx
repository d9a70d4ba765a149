// A plot over time, with a legend that a screen reader can read.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { VNode } from "preact";
import uPlot from "uplot";
import { clock, moment } from "./format";
import { colour, colours } from "./ui";

export interface Line {
  label: string;
  /** The name of a colour in the style sheet. */
  tint: string;
  values: (number | null)[];
  dashed?: boolean;
}

interface Props {
  title: string;
  about?: string;
  /** The moment of each value, in seconds. */
  times: number[];
  lines: Line[];
  say: (n: number) => string;
  /** Lines are amounts on top of each other, the first at the bottom. */
  stacked?: boolean;
  logarithmic?: boolean;
  empty: string;
}

const height = 190;

/** Adds each line to those below it. */
function pile(lines: Line[]): (number | null)[][] {
  const out: (number | null)[][] = [];
  for (const l of lines) {
    const below = out.at(-1);
    out.push(l.values.map((v, i) => (v === null ? null : v + (below?.[i] ?? 0))));
  }
  return out;
}

export function Plot(p: Props): VNode {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [index, setIndex] = useState<number | null>(null);
  const painted = colours.value;
  const shape = p.lines.map((l) => l.label).join("|") + painted;
  const filled = p.lines.some((l) => l.values.some((v) => v !== null && v !== 0));
  const data = useMemo((): uPlot.AlignedData => {
    const stack = p.stacked ? pile(p.lines) : p.lines.map((l) => l.values);
    return [p.times, ...(p.stacked ? stack.toReversed() : stack)] as uPlot.AlignedData;
  }, [p.times, p.lines]);
  useEffect(() => {
    const el = box.current;
    if (!el || !filled) return;
    const drawn = p.stacked ? p.lines.toReversed() : p.lines;
    const ink = colour("--quiet");
    const grid = { stroke: colour("--line"), width: 1 };
    const u = new uPlot(
      {
        width: el.clientWidth || 300,
        height,
        legend: { show: false },
        cursor: { y: false, points: { show: !p.stacked, size: 7 }, drag: { x: false, y: false } },
        hooks: { setCursor: [(u) => setIndex(u.cursor.idx ?? null)] },
        scales: { x: { time: true }, y: p.logarithmic ? { distr: 3 } : { range: (_, __, max) => [0, max > 0 ? max * 1.08 : 1] } },
        axes: [
          { stroke: ink, grid: { show: false }, ticks: { show: false }, font: "11px system-ui", size: 26, values: (_, at) => at.map((t) => axis(t, p.times)) },
          { stroke: ink, grid, ticks: { show: false }, font: "11px system-ui", size: 56, values: (_, at) => at.map((v) => (v === null || v === undefined ? "" : p.say(v))) },
        ],
        series: [
          {},
          ...drawn.map((l): uPlot.Series => {
            const paint = colour(l.tint);
            return {
              label: l.label,
              stroke: p.stacked ? undefined : paint,
              fill: p.stacked ? paint : undefined,
              width: p.stacked ? 0 : 1.8,
              dash: l.dashed ? [5, 4] : undefined,
              points: { show: !p.stacked && !l.dashed, size: 4, fill: paint },
              spanGaps: false,
            };
          }),
        ],
      },
      data,
      el,
    );
    plot.current = u;
    const watch = new ResizeObserver(() => u.setSize({ width: Math.max(200, el.clientWidth), height }));
    watch.observe(el);
    return () => {
      watch.disconnect();
      u.destroy();
      plot.current = null;
    };
  }, [shape, filled, p.logarithmic]);
  useEffect(() => plot.current?.setData(data), [data]);
  const last = index ?? p.times.length - 1;
  const at = p.times[last];
  return (
    <figure class="plot card">
      <figcaption>
        <h3>{p.title}</h3>
        {p.about && <p class="quiet">{p.about}</p>}
      </figcaption>
      {filled ? (
        <>
          <div ref={box} class="canvas" aria-hidden="true" />
          <ul class="legend" aria-label={`${p.title}, ${index === null ? "the latest values" : "the values at the pointer"}`}>
            {p.lines.map((l) => (
              <li key={l.label}>
                <span class={l.dashed ? "swatch dashed" : "swatch"} style={{ "--paint": `var(${l.tint})` }} aria-hidden="true" />
                {l.label} <b>{value(l.values, last, index !== null, p.say)}</b>
              </li>
            ))}
            <li class="quiet at">{at !== undefined && index !== null ? moment(at * 1000) : "latest"}</li>
          </ul>
        </>
      ) : (
        <p class="empty">{p.empty}</p>
      )}
    </figure>
  );
}

/** The value at the pointer; without one, the latest that there is. */
function value(all: (number | null)[], i: number, exact: boolean, say: (n: number) => string): string {
  const v = exact ? all[i] : all.findLast((v) => v !== null);
  return v === null || v === undefined ? "–" : say(v);
}

function axis(t: number, times: number[]): string {
  const wide = (times.at(-1) ?? 0) - (times[0] ?? 0) > 2 * 86400;
  return wide ? new Date(t * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" }) : clock(t * 1000, false);
}

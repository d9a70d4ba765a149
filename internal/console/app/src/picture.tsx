// The picture of the platform: one dot for each sandbox, in layers from awake to the deepest
// sleep. A sandbox that wakes rises, and one that falls asleep sinks.
import { useEffect, useRef, useState } from "preact/hooks";
import type { VNode } from "preact";
import { counts, placed, rows, type Row } from "./live";
import { count, plural } from "./format";
import { at, colour, colours, still } from "./ui";
import { depth, tierName, tiers, tint } from "./tiers";

const cellMax = 34;
const cellMin = 3;
const padding = 8;

interface Body {
  name: string;
  layer: number;
  slot: number;
  x: number;
  y: number;
  size: number;
  busy: number;
  fresh: boolean;
  /** 1 after a change of the layer, and less with each frame. */
  flash: number;
  /** The wakes that the picture has shown. */
  wakes: number;
  /** 1 after a wake that was over between two looks, and less with each frame. */
  rise: number;
}

const riseFrames = 80; // that such a wake takes

/** One layer: who is in which slot. A slot that somebody left is free for the next one. */
class Layer {
  readonly slots: (Body | null)[] = [];
  free: number[] = [];
  cell = cellMax;
  columns = 1;

  enter(b: Body): void {
    const slot = this.free.pop() ?? this.slots.length;
    this.slots[slot] = b;
    b.slot = slot;
  }

  leave(b: Body): void {
    this.slots[b.slot] = null;
    this.free.push(b.slot);
    if (this.free.length * 2 > this.slots.length) this.close();
  }

  private close(): void {
    const all = this.slots.filter((b) => b !== null);
    this.slots.length = 0;
    for (const b of all) b.slot = this.slots.push(b) - 1;
    this.free = [];
  }

  fit(width: number, height: number): void {
    const n = Math.max(1, this.slots.length);
    for (this.cell = cellMax; this.cell > cellMin; this.cell -= this.cell > 8 ? 1 : 0.5) {
      if (Math.floor(width / this.cell) * Math.floor(height / this.cell) >= n) break;
    }
    this.columns = Math.max(1, Math.floor(width / this.cell));
  }
}

class Scene {
  private readonly bodies = new Map<string, Body>();
  private layers = tiers.map(() => new Layer());
  private width = 0;
  private height = 0;
  private frame = 0;
  private paints: string[] = [];
  private timer = 0;

  constructor(private readonly canvas: HTMLCanvasElement) {}

  paint(): void {
    this.paints = tiers.map((t) => colour(tint(t.id)));
    this.wake();
  }

  resize(width: number, height: number): void {
    if (width === this.width && height === this.height) return;
    this.width = width;
    this.height = height;
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.settle();
  }

  update(all: readonly Row[]): void {
    const here = new Set<string>();
    const began = this.bodies.size === 0;
    for (const r of all) {
      if (!placed(r)) continue;
      here.add(r.name);
      const layer = depth(r.tier);
      if (layer < 0) continue;
      let b = this.bodies.get(r.name);
      if (!b) {
        b = { name: r.name, layer, slot: 0, x: 0, y: 0, size: 0, busy: 0, fresh: true, flash: began ? 0 : 1, wakes: r.wakes, rise: 0 };
        this.bodies.set(r.name, b);
        this.layers[layer]?.enter(b);
      } else if (b.layer !== layer) {
        this.layers[b.layer]?.leave(b);
        b.layer = layer;
        b.flash = 1;
        this.layers[layer]?.enter(b);
      }
      if (layer > 0 && r.wakes > b.wakes) b.rise = 1; // it may sleep less deeply now than before
      b.wakes = r.wakes;
      b.busy = r.busy ?? 0;
    }
    for (const [name, b] of this.bodies) {
      if (here.has(name)) continue;
      this.layers[b.layer]?.leave(b);
      this.bodies.delete(name);
    }
    this.settle();
  }

  private settle(): void {
    if (!this.width) return;
    for (const l of this.layers) l.fit(this.width - 2 * padding, this.height / tiers.length - 2 * padding);
    this.wake();
  }

  private target(b: Body): [x: number, y: number, size: number] {
    const l = this.layers[b.layer]!;
    const band = this.height / tiers.length;
    const rows = Math.ceil(l.slots.length / l.columns);
    const top = b.layer * band + Math.max(padding, (band - rows * l.cell) / 2);
    return [padding + (b.slot % l.columns) * l.cell + l.cell / 2, top + Math.floor(b.slot / l.columns) * l.cell + l.cell / 2, Math.min(10, l.cell * 0.36)];
  }

  /** The sandbox at a point. */
  hit(x: number, y: number): Body | undefined {
    const band = this.height / tiers.length;
    const l = this.layers[Math.floor(y / band)];
    if (!l) return undefined;
    const rows = Math.ceil(l.slots.length / l.columns);
    const top = Math.floor(y / band) * band + Math.max(padding, (band - rows * l.cell) / 2);
    const column = Math.floor((x - padding) / l.cell);
    if (column < 0 || column >= l.columns || y < top) return undefined;
    return l.slots[Math.floor((y - top) / l.cell) * l.columns + column] ?? undefined;
  }

  wake(): void {
    clearTimeout(this.timer);
    this.frame ||= requestAnimationFrame(this.draw);
  }

  stop(): void {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
  }

  private draw = (time: number): void => {
    this.frame = 0;
    const g = this.canvas.getContext("2d");
    if (!g || !this.width) return;
    const scale = devicePixelRatio || 1;
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, this.width, this.height);
    let moving = false;
    let breathes = false;
    for (const b of this.bodies.values()) {
      const [x, y, size] = this.target(b);
      if (b.fresh || still.matches) {
        b.x = x;
        b.y = y;
        b.size = still.matches ? size : 0;
        b.fresh = false;
      }
      b.x += (x - b.x) * 0.09;
      b.y += (y - b.y) * 0.09;
      b.size += (size - b.size) * 0.15;
      b.flash = still.matches ? 0 : b.flash * 0.97;
      if (b.flash < 0.02) b.flash = 0;
      b.rise = still.matches ? 0 : Math.max(0, b.rise - 1 / riseFrames);
      // Up to those that are awake, and back.
      const top = b.y - Math.sin(Math.PI * b.rise) * (b.y - this.height / tiers.length / 2);
      moving ||= b.rise > 0 || Math.abs(x - b.x) + Math.abs(y - b.y) + Math.abs(size - b.size) > 0.2 || b.flash > 0;
      const paint = this.paints[b.layer] ?? "";
      g.fillStyle = paint;
      if (b.size < 2) {
        g.globalAlpha = 1;
        g.fillRect(b.x - b.size, top - b.size, b.size * 2, b.size * 2);
        continue;
      }
      let halo = b.flash * 9;
      if (b.layer === 0) {
        breathes = true;
        halo = Math.max(halo, 2 + b.busy * 4 + (still.matches ? 0 : Math.sin(time / 600 + b.slot) * 1.4));
      }
      if (halo > 0.3) {
        g.globalAlpha = 0.22;
        g.beginPath();
        g.arc(b.x, top, b.size + halo, 0, 7);
        g.fill();
      }
      g.globalAlpha = 1;
      g.beginPath();
      g.arc(b.x, top, b.size, 0, 7);
      g.fill();
    }
    g.globalAlpha = 1;
    if (moving) this.wake();
    else if (breathes && !still.matches && !document.hidden) this.timer = window.setTimeout(() => this.wake(), 80);
  };
}

interface Tip {
  name: string;
  layer: number;
  x: number;
  y: number;
}

/** The picture. What wakes of each tier take is from the history; it is missing without one. */
export function Picture({ wakes }: { wakes: ReadonlyMap<string, string> }): VNode {
  const canvas = useRef<HTMLCanvasElement>(null);
  const scene = useRef<Scene | null>(null);
  const [tip, setTip] = useState<Tip | null>(null);
  useEffect(() => {
    const c = canvas.current;
    if (!c) return;
    const s = new Scene(c);
    scene.current = s;
    const watch = new ResizeObserver(() => s.resize(c.clientWidth, c.clientHeight));
    watch.observe(c);
    const back = (): void => s.wake();
    document.addEventListener("visibilitychange", back);
    s.resize(c.clientWidth, c.clientHeight);
    return () => {
      watch.disconnect();
      document.removeEventListener("visibilitychange", back);
      s.stop();
    };
  }, []);
  const painted = colours.value;
  useEffect(() => scene.current?.paint(), [painted]);
  const all = rows.value;
  useEffect(() => scene.current?.update(all), [all]);
  const point = (e: PointerEvent): void => {
    const b = scene.current?.hit(e.offsetX, e.offsetY);
    setTip(b ? { name: b.name, layer: b.layer, x: e.offsetX, y: e.offsetY } : null);
  };
  const go = (e: MouseEvent): void => {
    const b = scene.current?.hit(e.offsetX, e.offsetY);
    if (b) location.hash = at("sandboxes", b.name);
  };
  return (
    <div class="picture">
      <ul class="layers">
        {tiers.map((t) => {
          const n = counts.value.get(t.id) ?? 0;
          return (
            <li key={t.id} class={`layer tier-${t.id}`}>
              <a href={`${at("sandboxes")}?tier=${t.id}`}>
                <span class="number" data-tier={t.id}>{count(n)}</span>
                <span class="title">{t.name}</span>
                <span class="about">{t.about}{wakes.get(t.id) && <>. Wakes in <b>{wakes.get(t.id)}</b></>}</span>
              </a>
            </li>
          );
        })}
      </ul>
      <div class="scene">
        <canvas ref={canvas} class={tip ? "aims" : ""} aria-hidden="true" onPointerMove={point} onPointerLeave={() => setTip(null)} onClick={go} />
        {tip && (
          <div class="tip" aria-hidden="true" style={{ left: `${tip.x}px`, top: `${tip.y}px` }}>
            <b>{tip.name}</b> {tierName(tiers[tip.layer]?.id ?? "").toLowerCase()}
          </div>
        )}
      </div>
      <p class="unseen">{plural(all.filter(placed).length, "sandbox", "sandboxes")} in the picture.</p>
    </div>
  );
}

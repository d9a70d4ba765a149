// A terminal in a sandbox. Its socket keeps the sandbox awake, so it lets go after an idle
// minute. The shell goes on when the terminal comes back.
import { effect } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { call, get, type Usage } from "./api";
import type { Emulator } from "./emulator";
import { Gate, says } from "./gate";
import { Idle } from "./idle";
import { baseOf } from "./inside";
import { colours, reason, Switch, tell } from "./ui";

type State = "opening" | "open" | "cut" | "asleep" | "idle" | "ended";

const words: Record<State, string> = {
  opening: "Connecting…",
  open: "Connected",
  cut: "The connection was cut. The page tries again.",
  asleep: "The sandbox sleeps, and its shells with it.",
  idle: "Nothing happened for a minute, so the terminal let go: the sandbox can sleep.",
  ended: "The shell ended.",
};

const sessionsMax = 8;
const retryMax = 10_000; // ms

/** Names the shells of this tab: a reload finds them again. */
function shellName(n: number): string {
  const place = "doze.shells";
  const made = sessionStorage.getItem(place) ?? [...crypto.getRandomValues(new Uint8Array(9))].map((b) => b.toString(36)).join("");
  sessionStorage.setItem(place, made);
  return `page-${made}-${n}`;
}

export function TerminalView({ name, awake }: { name: string; awake: boolean }): VNode {
  return <Gate name={name} what="The terminal" awake={awake}><Shells name={name} awake={awake} /></Gate>;
}

function Shells({ name, awake }: { name: string; awake: boolean }): VNode {
  const [count, setCount] = useState(1);
  const [shown, setShown] = useState(1);
  return (
    <section class="card shells" aria-labelledby="shells">
      <div class="line">
        <h2 id="shells">Terminal</h2>
        <div class="choices" role="group" aria-label="Shells">
          {Array.from({ length: count }, (_, i) => i + 1).map((n) => (
            <button key={n} type="button" aria-pressed={n === shown} onClick={() => setShown(n)}>Shell {n}</button>
          ))}
          {count < sessionsMax && <button type="button" onClick={() => (setCount(count + 1), setShown(count + 1))}>{says("New shell", awake)}</button>}
        </div>
      </div>
      <Shell key={shown} name={name} shell={shellName(shown)} />
    </section>
  );
}

/** One shell at its socket. */
class Line {
  private socket: WebSocket | null = null;
  private idle: Idle | null = null;
  private timer = 0;
  private tries = 0;
  private over = false;

  constructor(
    private readonly name: string,
    private readonly shell: string,
    private readonly emulator: Emulator,
    private readonly tell: (s: State, fault?: string) => void,
  ) {}

  /** Connects, and wakes the sandbox if it sleeps. */
  async connect(): Promise<void> {
    this.drop();
    this.tell("opening");
    try {
      const { ticket } = await call<{ ticket: string }>("POST", `/sandboxes/${encodeURIComponent(this.name)}/tickets`);
      if (this.over) return;
      const { cols, rows } = this.emulator.size();
      const q = new URLSearchParams({ token: ticket, sessionId: this.shell, cols: String(cols), rows: String(rows) });
      const socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}${baseOf(this.name)}/terminal/ws?${q.toString()}`);
      this.socket = socket;
      socket.onopen = () => {
        this.tries = 0;
        this.emulator.reset(); // the shell sends again what it showed
        this.emulator.focus();
        this.idle = new Idle(() => (this.drop(), this.tell("idle")));
        this.tell("open");
      };
      socket.onmessage = (e: MessageEvent<unknown>) => this.got(e.data);
      socket.onclose = (e) => this.closed(e.code);
    } catch (e) {
      if (!this.over) this.retry(reason(e));
    }
  }

  send(frame: object): boolean {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.idle?.touch();
    this.socket.send(JSON.stringify(frame));
    return true;
  }

  end(): void {
    this.over = true;
    this.drop();
  }

  private got(data: unknown): void {
    this.idle?.touch();
    let frame: { type?: unknown; data?: unknown } | null;
    try {
      frame = JSON.parse(String(data)) as { type?: unknown; data?: unknown } | null;
    } catch {
      return; // no agent sends it
    }
    if (typeof frame?.data !== "string") return;
    if (frame.type === "output") this.emulator.write(frame.data);
    if (frame.type === "error") this.emulator.write(`\r\n${frame.data}\r\n`);
  }

  private drop(): void {
    clearTimeout(this.timer);
    this.idle?.stop();
    if (this.socket) {
      this.socket.onopen = this.socket.onmessage = this.socket.onclose = null;
      this.socket.close();
    }
    this.socket = null;
  }

  private closed(code: number): void {
    this.drop();
    if (code === 1000) this.tell("ended");
    else this.retry();
  }

  private retry(fault = ""): void {
    this.tell("cut", fault);
    this.timer = window.setTimeout(() => void this.again(), Math.min(retryMax, 500 * 2 ** this.tries++));
  }

  /** Connects again, but wakes nothing. */
  private async again(): Promise<void> {
    try {
      const { tier } = await get<Usage>(`/sandboxes/${encodeURIComponent(this.name)}/usage`);
      if (this.over) return;
      if (tier === "awake") await this.connect();
      else this.tell("asleep");
    } catch (e) {
      if (!this.over) this.retry(reason(e));
    }
  }
}

function Shell({ name, shell }: { name: string; shell: string }): VNode {
  const box = useRef<HTMLDivElement>(null);
  const bar = useRef<HTMLDivElement>(null);
  const line = useRef<Line | null>(null);
  const emulator = useRef<Emulator | null>(null);
  const [state, setState] = useState<State>("opening");
  const [fault, setFault] = useState("");
  const [aloud, setAloud] = useState(false);
  const waits = state === "idle" || state === "asleep" || state === "ended";
  useEffect(() => {
    let unpaint = (): void => undefined;
    let over = false;
    void import("./emulator").then(({ emulate }) => {
      if (over || !box.current) return;
      const e = emulate(box.current, {
        typed: (text) => line.current?.send({ type: "input", data: text }),
        resized: (cols, rows) => line.current?.send({ type: "resize", cols, rows }),
        left: () => bar.current?.querySelector("button")?.focus(),
      });
      emulator.current = e;
      unpaint = effect(() => (colours.value, e.paint()));
      line.current = new Line(name, shell, e, (s, why = "") => (setState(s), setFault(why)));
      void line.current.connect();
    }, (e: unknown) => tell("The terminal did not load. Load the page again. " + reason(e), true));
    return () => {
      over = true;
      unpaint();
      line.current?.end();
      emulator.current?.close();
    };
  }, [name, shell]);
  useEffect(() => emulator.current?.read(aloud), [aloud]);
  return (
    <>
      <div class="terminal-box" ref={box} data-state={state} />
      <div class="line" ref={bar}>
        <p class="quiet grows" role="status">{words[state]} {fault}</p>
        {waits && <button type="button" class="primary" onClick={() => void line.current?.connect()}>{state === "ended" ? "Begin a new shell" : "Wake and go on"}</button>}
        <Switch label="For a screen reader" on={aloud} set={setAloud} />
      </div>
      <p class="quiet">Shift and F6 leave the terminal. A shell that nobody is at ends after ten minutes.</p>
    </>
  );
}

// The log of a build, as it comes: its steps, each with what it wrote.
import { useEffect, useRef, useState } from "preact/hooks";
import type { VNode } from "preact";
import { fetched, Refusal, type Answer } from "./api";
import { bytes, clock, count, took } from "./format";
import { useTail } from "./tail";
import { save } from "./transfer";
import { Fault, now, reason, tell } from "./ui";

type BuildEvent = Answer<"BuildEvent">;

interface Step {
  key: string;
  title: string;
  stage: string;
  /** Its number in the stage, or 0. */
  number: number;
  of: number;
  line: number;
  began: number;
  state: string;
  tookMs: number;
  lines: string[];
  /** How many lines were left out at the beginning. */
  lost: number;
  transfer: string;
}

/** The most lines that the page has. The API gives all of them as a file. */
const linesMax = 2000;
const wordsMax = 50;
const drawEvery = 150;

// Colours and moves of a terminal, which mean nothing here.
const escapes = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])|[\x00-\x08\x0b-\x1f\x7f]/g;

/** A line as a terminal would show it: what it was before a carriage return is gone. */
const shown = (line: string): string => line.slice(line.lastIndexOf("\r", line.length - 2) + 1).replace(escapes, "");

/** What the events of a build add up to. */
class Journal {
  readonly steps: Step[] = [];
  readonly words: string[] = [];
  note = "";
  ended = false;
  private last = "";
  private kept = 0;

  /** Takes an event. One that it has already changes nothing: no two have the same time. */
  add(e: BuildEvent): void {
    if (e.at <= this.last) return;
    this.last = e.at;
    if (e.status) this.ended = true;
    else if (!e.name) this.say(e.text ?? "");
    else this.change(e);
  }

  private say(text: string): void {
    if (!text) return;
    if (!text.startsWith("warning:")) this.note = text;
    else if (this.words.length < wordsMax) this.words.push(text);
  }

  private change(e: BuildEvent): void {
    const s = this.stepOf(e);
    if (e.state === "started" || e.state === "waiting") s.state = e.state;
    else if (e.state) {
      s.state = e.state;
      s.tookMs = e.tookMs ?? 0;
    } else if (e.text) {
      const lines = e.text.replace(/\n$/, "").split("\n").map(shown);
      s.lines.push(...lines);
      this.kept += lines.length;
      this.forget();
    } else if (e.current || e.total) s.transfer = e.total ? `${bytes(e.current ?? 0)} of ${bytes(e.total)}` : bytes(e.current ?? 0);
  }

  private stepOf(e: BuildEvent): Step {
    const key = e.vertex || `${e.stage} ${e.step} ${e.name}`;
    let s = this.steps.find((one) => one.key === key);
    if (!s) {
      s = {
        key, title: e.name ?? "", stage: e.stage ?? "", number: e.step ?? 0, of: e.steps ?? 0, line: e.line ?? 0,
        began: Date.parse(e.at), state: "started", tookMs: 0, lines: [], lost: 0, transfer: "",
      };
      // The steps of a stage may be told in any order.
      const { stage, number } = s;
      const before = number ? this.steps.findIndex((one) => one.stage === stage && one.number > number) : -1;
      this.steps.splice(before < 0 ? this.steps.length : before, 0, s);
    }
    return s;
  }

  private forget(): void {
    for (const s of this.steps) {
      const n = Math.min(s.lines.length, this.kept - linesMax);
      if (n <= 0) continue;
      s.lines.splice(0, n);
      s.lost += n;
      this.kept -= n;
    }
  }
}

async function* events(id: string, stop: AbortSignal): AsyncGenerator<BuildEvent> {
  const r = await fetched("GET", `/builds/${encodeURIComponent(id)}/logs?follow=true`, undefined, stop);
  if (!r.body) return;
  const reader = r.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    rest += decoder.decode(value, { stream: !done });
    const all = rest.split("\n");
    rest = done ? "" : (all.pop() ?? "");
    for (const line of all) if (line.trim()) yield JSON.parse(line) as BuildEvent;
    if (done) return;
  }
}

/** Follows a build to its end. After a cut, it begins again where it was. */
async function follow(id: string, to: Journal, changed: () => void, failed: (why: string) => void, stop: AbortSignal): Promise<void> {
  for (let wait = 1000; !to.ended && !stop.aborted; ) {
    let why = "The log was cut.";
    try {
      for await (const e of events(id, stop)) {
        to.add(e);
        wait = 1000;
        changed();
      }
    } catch (e) {
      if (stop.aborted) return;
      why = reason(e);
      if (e instanceof Refusal && e.status >= 400 && e.status < 500 && e.status !== 429) return failed(why);
    }
    if (to.ended || stop.aborted) break;
    failed(why + " The page tries again.");
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(30_000, wait * 2);
  }
}

export function BuildLog({ id, done }: { id: string; done: () => void }): VNode {
  const journal = useRef(new Journal());
  const [turn, setTurn] = useState(0);
  const [fault, setFault] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const draw = (): void => {
      timer = 0;
      setTurn((n) => n + 1);
      setFault("");
    };
    const changed = (): void => void (timer ||= window.setTimeout(draw, drawEvery));
    void follow(id, journal.current, changed, setFault, stop.signal).then(() => stop.signal.aborted || done());
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [id]);
  const tail = useTail(turn);
  const j = journal.current;
  return (
    <section class="card records" aria-labelledby="build-log">
      <div class="bar">
        <h2 id="build-log">Log</h2>
        <button type="button" class="small" onClick={() => void save(`/builds/${encodeURIComponent(id)}/logs`, `build-${id}.jsonl`).catch((e: unknown) => tell(reason(e), true))}>Save the whole log</button>
      </div>
      {fault && <Fault>{fault}</Fault>}
      {j.words.map((w) => <p key={w} class="warned">{w}</p>)}
      {j.note && !j.ended && <p class="quiet" role="status">{j.note}</p>}
      {j.steps.length === 0 && <p class="empty">{j.ended ? "No step ran." : "No step has begun yet."}</p>}
      {j.steps.length > 0 && (
        <ol class="steps" {...tail} tabIndex={0} aria-label="Steps, the newest last">
          {j.steps.map((s) => <StepView key={s.key} step={s} over={j.ended} />)}
        </ol>
      )}
    </section>
  );
}

const names: Record<string, string> = { started: "runs", waiting: "waits", cached: "from the cache", done: "done", failed: "failed" };

function StepView({ step: s, over }: { step: Step; over: boolean }): VNode {
  const runs = (s.state === "started" || s.state === "waiting") && !over;
  const time = runs ? Math.max(0, now.value - s.began) : s.tookMs;
  return (
    <li class={s.state} data-state={s.state} title={`Begun at ${clock(s.began)}`}>
      <p class="head">
        {s.number > 0 && <span class="quiet">{s.stage} {s.number}/{s.of}</span>}
        <code>{s.title}</code>
        {s.line > 0 && <span class="quiet">line {s.line}</span>}
        <span class="how">{runs && s.transfer ? s.transfer + ", " : ""}{over && !s.tookMs && s.state === "started" ? "ended" : names[s.state] ?? s.state}{time > 0 && s.state !== "cached" && ` ${took(time * 1000)}`}</span>
      </p>
      {s.lost > 0 && <p class="quiet">{count(s.lost)} older lines are left out here. The whole log has them.</p>}
      {s.lines.length > 0 && <pre>{s.lines.join("\n")}</pre>}
    </li>
  );
}

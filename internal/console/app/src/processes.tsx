// The processes of a sandbox. Nothing asks again by itself, so that the sandbox can sleep
// while the list is open.
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { may } from "./api";
import { ago, moment, plural } from "./format";
import { Gate, says } from "./gate";
import { Idle } from "./idle";
import { endProcess, follow, processes, startProcess, type Line, type Process } from "./inside";
import { useTail } from "./tail";
import { Dialog, Fault, now, readOnly, reason, tell } from "./ui";
import { printed, visible } from "./visible";

interface Props {
  name: string;
  awake: boolean;
}

export function ProcessesView({ name, awake }: Props): VNode {
  return <Gate name={name} what="The list of processes" awake={awake}><Processes name={name} awake={awake} /></Gate>;
}

const rowsOf = 100;
const live = (p: Process): boolean => p.status === "running";

/** Running ones first, then the newest. */
const order = (a: Process, b: Process): number => Number(live(b)) - Number(live(a)) || (b.started || 0) - (a.started || 0);

function Processes({ name, awake }: Props): VNode {
  const [all, setAll] = useState<Process[] | null>(null);
  const [readAt, setReadAt] = useState(0);
  const [fault, setFault] = useState("");
  const [turn, setTurn] = useState(0);
  const [most, setMost] = useState(rowsOf);
  const [starts, setStarts] = useState(false);
  const [shown, setShown] = useState<Process | null>(null);
  const again = (): void => setTurn((n) => n + 1);
  useEffect(() => {
    const stop = new AbortController();
    processes(name, stop.signal).then(
      (p) => (setAll(p.sort(order)), setReadAt(Date.now()), setFault("")),
      (e: unknown) => stop.signal.aborted || setFault(reason(e)),
    );
    return () => stop.abort();
  }, [name, turn]);
  const writes = !readOnly.value && may("sandboxes:control");
  const end = async (p: Process, kill: boolean): Promise<void> => {
    try {
      await endProcess(name, p.pid, kill);
      tell(`${visible(p.name)} is ${kill ? "killed" : "asked to stop"}.`);
    } catch (e) {
      tell(reason(e), true);
    }
    again();
  };
  return (
    <>
      <section class="card inside" aria-labelledby="processes">
        <div class="line">
          <h2 id="processes">Processes</h2>
          <button type="button" class="small" onClick={again}>{says("Refresh", awake)}</button>
          {writes && <button type="button" class="small primary" onClick={() => setStarts(true)}>Start a command</button>}
        </div>
        {fault && <Fault>{fault}</Fault>}
        {all === null && !fault && <p class="quiet" role="status">Looking…</p>}
        {all?.length === 0 && <p class="empty">No process was started through the API. Those of a terminal are not among them.</p>}
        {all !== null && all.length > 0 && (
          <div class="scrolls" tabIndex={0} role="region" aria-label="List of processes">
            <table class="rows">
              <thead><tr><th scope="col">Name</th><th scope="col">Status</th><th scope="col" class="wide-only">Started</th><th scope="col" class="wide-only">Command</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
              <tbody>
                {all.slice(0, most).map((p) => (
                  <tr key={p.pid + p.started}>
                    <th scope="row"><bdi>{visible(p.name)}</bdi> <span class="quiet">{visible(p.pid)}</span></th>
                    <td><span class={p.status === "failed" ? "bad" : ""}>{visible(p.status)}</span>{!live(p) && <span class="quiet"> {p.exitCode}</span>}{p.restarts > 0 && <span class="quiet">, {plural(p.restarts, "restart")}</span>}</td>
                    <td class="wide-only quiet">{!Number.isNaN(p.started) && <time dateTime={new Date(p.started).toISOString()} title={moment(p.started)}>{ago(p.started, now.value)}</time>}</td>
                    <td class="wide-only"><code class="command"><bdi>{visible(p.command)}</bdi></code></td>
                    <td class="acts">
                      <button type="button" class="small" aria-label={says(`Output of ${visible(p.name)}`, awake)} aria-pressed={shown?.pid === p.pid} onClick={() => setShown(p)}>Output</button>
                      {writes && live(p) && <button type="button" class="small" aria-label={says(`Stop ${visible(p.name)}`, awake)} onClick={() => void end(p, false)}>Stop</button>}
                      {writes && (live(p) || p.status === "stopped") && <button type="button" class="small danger" aria-label={says(`Kill ${visible(p.name)}`, awake)} onClick={() => void end(p, true)}>Kill</button>}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        {all !== null && (
          <p class="quiet" role="status">
            {plural(all.length, "process", "processes")}{all.length > most && <>, of which {most} are shown <button type="button" class="small" onClick={() => setMost(most + rowsOf)}>Show {rowsOf} more</button></>}, as of {ago(readAt, now.value)}. The list does not ask again by itself, so that the sandbox can sleep.
          </p>
        )}
      </section>
      {shown && <Followed key={shown.pid + shown.started} name={name} process={shown} awake={awake} ended={again} />}
      {starts && <Start name={name} awake={awake} close={() => setStarts(false)} done={(p) => (setShown(p), again())} />}
    </>
  );
}

const linesMax = 2000;

type State = "follows" | "paused" | "idle" | "ended" | "failed";

const words: Record<State, string> = {
  follows: "This follows what it writes, and keeps the sandbox awake.",
  paused: "This stands still.",
  idle: "It wrote nothing for a minute, so this let go: the sandbox can sleep.",
  ended: "The process ended.",
  failed: "",
};

/** What a process wrote and writes. */
function Followed({ name, process, awake, ended }: Props & { process: Process; ended: () => void }): VNode {
  const [lines, setLines] = useState<readonly Line[]>([]);
  const [lost, setLost] = useState(0);
  const [state, setState] = useState<State>("follows");
  const [fault, setFault] = useState("");
  const tail = useTail(lines);
  const pid = process.pid;
  useEffect(() => {
    if (state !== "follows") return;
    const stop = new AbortController();
    let all: Line[] = [];
    let dropped = 0;
    let frame = 0;
    const show = (): void => {
      frame = 0;
      setLines(all);
      setLost(dropped);
    };
    const idle = new Idle(() => setState("idle"));
    follow(name, pid, stop.signal, (more) => {
      idle.touch();
      all = [...all, ...more];
      dropped += Math.max(0, all.length - linesMax);
      all = all.slice(-linesMax);
      frame ||= window.setTimeout(show, 100); // a fast one would draw too often
    }).then(
      () => (show(), setState("ended"), ended()),
      (e: unknown) => stop.signal.aborted || (setFault(reason(e)), setState("failed")),
    );
    return () => {
      stop.abort();
      idle.stop();
      clearTimeout(frame);
    };
  }, [name, pid, state]);
  return (
    <section class="card inside followed" aria-labelledby="followed">
      <div class="line">
        <h2 id="followed">Output of <bdi>{visible(process.name)}</bdi></h2>
        {state === "follows"
          ? <button type="button" class="small" onClick={() => setState("paused")}>Pause</button>
          : <button type="button" class="small" onClick={() => (setFault(""), setState("follows"))}>{says(state === "ended" ? "Read again" : "Follow", awake)}</button>}
      </div>
      {fault && <Fault>{fault}</Fault>}
      <p class="quiet" role="status">{words[state]}{lost > 0 && ` The ${plural(lost, "line")} before are not shown.`}</p>
      {lines.length > 0 && (
        <ol class="lines" {...tail} tabIndex={0} aria-label="Lines, the newest last">
          {lines.map((l, i) => (
            <li key={i + lost} class={l.error ? "bad" : ""}>
              <span class="quiet">{l.error ? "stderr" : "stdout"}</span>
              <code>{printed(l.text)}</code>
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}

function Start({ name, awake, close, done }: Props & { close: () => void; done: (p: Process) => void }): VNode {
  const [command, setCommand] = useState("");
  const [as, setAs] = useState("");
  const [directory, setDirectory] = useState("");
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const submit = async (e: Event): Promise<void> => {
    e.preventDefault();
    if (!command.trim() || busy) return;
    setBusy(true);
    try {
      const p = await startProcess(name, { command, name: as.trim() || undefined, workingDir: directory.trim() || undefined });
      tell(`${visible(p.name)} runs.`);
      done(p);
      close();
    } catch (e) {
      setFault(reason(e));
      setBusy(false);
    }
  };
  return (
    <Dialog title={`Start a command in ${name}`} close={close}>
      <form onSubmit={submit}>
        <label for="command">Command</label>
        <input id="command" autofocus autocomplete="off" spellcheck={false} value={command} onInput={(e) => setCommand(e.currentTarget.value)} />
        <label for="as">Name <span class="quiet">(may be left empty)</span></label>
        <input id="as" autocomplete="off" spellcheck={false} value={as} onInput={(e) => setAs(e.currentTarget.value)} />
        <label for="directory">Directory <span class="quiet">(may be left empty)</span></label>
        <input id="directory" autocomplete="off" spellcheck={false} value={directory} onInput={(e) => setDirectory(e.currentTarget.value)} />
        {fault && <Fault>{fault}</Fault>}
        <div class="buttons">
          <button type="button" onClick={close}>Cancel</button>
          <button type="submit" class="primary" disabled={!command.trim() || busy}>{busy ? "Wait…" : says("Start", awake)}</button>
        </div>
      </form>
    </Dialog>
  );
}

// One sandbox: how it sleeps, what its life was, and what one may do with it. Looking at it
// asks the platform alone, so it does not wake.
import { useEffect, useRef, useState } from "preact/hooks";
import type { ComponentChildren, VNode } from "preact";
import { call, get, may, Refusal, type List, type Preview, type Sandbox, type Snapshot, type Trace, type Usage } from "./api";
import { Archived, archiving } from "./archive";
import { Ask, carryOut } from "./ask";
import { FormDialog, type Form } from "./form";
import { ago, bytes, clock, moment, span, took } from "./format";
import { InsideView } from "./insideview";
import { extension } from "./lifetime";
import { find } from "./live";
import { NetworkCard } from "./network";
import { Output } from "./output";
import { stateName } from "./sandboxes";
import { Tabs, tab } from "./tabs";
import { depth, tiers } from "./tiers";
import { Tree } from "./tree";
import { at, Dot, Fault, now, readOnly, reason, tell } from "./ui";

const retryAfter = 8000; // ms after a call that failed

interface Known {
  sandbox: Sandbox;
  usage: Usage;
  traces: Trace[];
  snapshots: Snapshot[];
  previews: Preview[];
}

const data = <T,>(all: T[] | List<T>): T[] => (Array.isArray(all) ? all : all.data);

async function read(name: string, stop: AbortSignal): Promise<Known> {
  const path = "/sandboxes/" + encodeURIComponent(name);
  const [sandbox, usage, traces, snapshots, previews] = await Promise.all([
    get<Sandbox>(path, stop),
    get<Usage>(path + "/usage", stop),
    get<Trace[] | List<Trace>>(path + "/traces", stop),
    get<Snapshot[] | List<Snapshot>>(path + "/snapshots", stop),
    get<Preview[] | List<Preview>>(path + "/previews", stop),
  ]);
  return { sandbox, usage, traces: data(traces), snapshots: data(snapshots), previews: data(previews) };
}

/** What of a sandbox makes its page ask for its record, its wakes and its snapshots again. */
function stampOf(name: string): string {
  const r = find(name);
  return r ? [r.feed.version, r.status, r.feed.state, r.tier, r.wakes, r.failures].join() : "";
}

export function SandboxView({ name }: { name: string }): VNode {
  const [known, setKnown] = useState<Known | null>(null);
  const [fault, setFault] = useState("");
  const [gone, setGone] = useState(false);
  const again = useRef<() => void>(() => undefined);
  const stamp = stampOf(name);
  useEffect(() => {
    document.title = `${name} – Doze`;
    const stop = new AbortController();
    let timer = 0;
    let turn = 0;
    const next = async (): Promise<void> => {
      clearTimeout(timer);
      const mine = ++turn;
      try {
        const k = await read(name, stop.signal);
        if (mine !== turn) return;
        setKnown(k);
        setFault("");
        setGone(false);
      } catch (e) {
        if (stop.signal.aborted || mine !== turn) return;
        const ended = e instanceof Refusal && e.status === 404;
        setGone(ended);
        setFault(reason(e));
        if (!ended) timer = window.setTimeout(() => void next(), retryAfter);
      }
    };
    again.current = () => void next();
    setKnown(null);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [name]);
  useEffect(() => again.current(), [name, stamp]);
  const back = <p class="crumb"><a href={at("sandboxes")}>Sandboxes</a></p>;
  if (gone) {
    return <>{back}<h1>{name}</h1><p class="empty card">There is no sandbox with this name, or its record is gone. <a href={at("sandboxes")}>See those that are there</a></p></>;
  }
  if (!known) return <>{back}<h1>{name}</h1>{fault ? <Fault>{fault}</Fault> : <p class="quiet" role="status">Looking…</p>}</>;
  const usage: Usage = { ...known.usage, ...find(name)?.feed }; // the feed is newer
  const { sandbox } = known;
  const labels = Object.entries(sandbox.metadata.labels ?? {});
  const row = { tier: usage.tier, status: sandbox.status ?? "" };
  return (
    <>
      {back}
      <div class="bar subject">
        <h1>{sandbox.metadata.displayName || name}</h1>
        <span class="state big" role="status" data-tier={usage.tier}><Dot tier={usage.tier} />{stateName(row)}</span>
        <span class="labels">{labels.map(([k, v]) => <span key={k} class="label">{k}={v}</span>)}</span>
      </div>
      {fault && <Fault>{fault}</Fault>}
      <Archived key={name} name={name} sandbox={sandbox} done={() => again.current()} />
      <Actions name={name} known={{ ...known, usage }} done={() => again.current()} />
      <Tabs name={name} />
      {tab() ? <InsideView name={name} sandbox={sandbox} awake={usage.tier === "awake"} /> : (
        <>
          <Depth tier={usage.tier} />
          <Facts known={{ ...known, usage }} />
          <div class="columns">
            <div>
              <Wakes traces={known.traces} usage={usage} />
              <Addresses known={{ ...known, usage }} />
            </div>
            <div>
              <NetworkCard name={name} sandbox={sandbox} stamp={stamp} done={() => again.current()} />
              <Life known={known} />
              <Tree sandbox={sandbox} snapshots={known.snapshots} done={() => again.current()} />
            </div>
          </div>
          <Output name={name} />
        </>
      )}
    </>
  );
}

/** Where the sandbox is to be reached: its API, and its previews. */
function Addresses({ known: { sandbox, previews, usage } }: { known: Known }): VNode | null {
  const url = sandbox.metadata.url;
  if (!url) return null;
  const copy = (text: string): void => void navigator.clipboard.writeText(text).then(() => tell("The address is in the clipboard."), () => tell("The browser refused to copy.", true));
  // Without TLS, a browser has no clipboard but for this machine.
  const copies = (text: string, what: string): VNode | false => isSecureContext && <button type="button" class="small" aria-label={`Copy the address of ${what}`} onClick={() => copy(text)}>Copy</button>;
  return (
    <section class="card" aria-labelledby="addresses">
      <h2 id="addresses">Addresses</h2>
      <ul class="addresses">
        <li><span><b>Its API</b> <code>{url}</code></span>{copies(url, "its API")}</li>
        {previews.map((p) => p.spec.url && (
          <li key={p.metadata.name}>
            <span><b>Preview {p.metadata.name}</b> <span class="quiet">port {p.spec.port}, {p.spec.public ? "public" : "private"}</span> <code>{p.spec.url}</code></span>
            {copies(p.spec.url, "the preview " + p.metadata.name)}
            {p.spec.public && <a class="button small" href={p.spec.url} target="_blank" rel="noopener noreferrer">{usage.tier === "awake" ? "Open" : "Open (wakes it)"}</a>}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Where the memory is, on the way from awake to disk. */
function Depth({ tier }: { tier: string }): VNode | null {
  const at = depth(tier);
  if (at < 0) return null;
  return (
    <ol class="depth card" aria-label="The depth of its sleep">
      {tiers.map((t, i) => (
        <li key={t.id} class={`tier-${t.id} ${i === at ? "here" : ""}`} aria-current={i === at ? "step" : undefined}>
          <Dot tier={t.id} />
          <b>{t.name}</b>
          <span class="quiet">{t.about}</span>
        </li>
      ))}
    </ol>
  );
}

/** Where a change of the deadlines leaves the machine as it is. A sandbox that failed gets another one. */
const keeps = new Set(["DEPLOYED", "DEACTIVATED", "ARCHIVED"]);

type Asked = "fork" | "snapshot" | "delete" | null;

function Actions({ name, known, done }: { name: string; known: Known; done: () => void }): VNode | null {
  const [asked, setAsked] = useState<Asked>(null);
  const [form, setForm] = useState<Form | null>(null);
  const [busy, setBusy] = useState("");
  if (readOnly.value) return null;
  const path = "/sandboxes/" + encodeURIComponent(name);
  const { usage, sandbox } = known;
  const lives = sandbox.status === "DEPLOYED";
  const act = async (what: string, said: string, method: string, to: string, body?: unknown): Promise<boolean> => {
    setBusy(what);
    const ok = await carryOut(said, method, path + to, body);
    setBusy("");
    done();
    return ok;
  };
  const buttons: VNode[] = [];
  const button = (what: string, label: string, run: () => void, kind = ""): void => {
    buttons.push(<button key={what} type="button" data-action={what} class={kind} disabled={busy !== ""} onClick={run}>{busy === what ? label + "…" : label}</button>);
  };
  if (lives && may("sandboxes:control")) {
    if (usage.tier !== "awake") button("wake", "Wake", () => void act("wake", `${name} is awake.`, "POST", "/wake"), "primary");
    if (usage.tier === "awake") button("sleep", "Sleep", () => void act("sleep", `${name} sleeps.`, "POST", "/sleep"), "primary");
    if (usage.tier !== "disk" && usage.tier) button("disk", "Sleep on disk", () => void act("disk", `${name} sleeps on disk.`, "POST", "/sleep?tier=disk"));
  }
  const terminal = async (): Promise<void> => {
    const tab = window.open("about:blank"); // at once: later, a browser would refuse it
    try {
      const { url } = await call<{ url: string }>("POST", path + "/tickets");
      if (!tab) throw new Error("The browser refused to open a tab. Allow it for this page.");
      tab.opener = null;
      tab.location.replace(url);
    } catch (e) {
      tab?.close();
      tell(reason(e), true);
    }
  };
  if (lives && may("sandboxes:control")) button("terminal", usage.tier === "awake" ? "Terminal" : "Terminal (wakes it)", () => void terminal());
  if (lives && may("sandboxes:update")) button("snapshot", "Take a snapshot", () => setAsked("snapshot"));
  if (lives && may("sandboxes:create")) button("fork", "Fork", () => setAsked("fork"));
  if (keeps.has(sandbox.status ?? "") && may("sandboxes:update")) button("extend", "Change its end", () => setForm(extension(sandbox)));
  if (lives && may("sandboxes:update")) button("archive", "Archive", () => setForm(archiving(name, usage.tier === "awake")));
  if (may("sandboxes:delete") && sandbox.status !== "DELETING" && sandbox.status !== "TERMINATED") button("delete", "Delete", () => setAsked("delete"), "danger");
  if (buttons.length === 0) return null;
  const close = (): void => setAsked(null);
  return (
    <>
      <div class="actions" role="group" aria-label="Actions">{buttons}</div>
      {form && <FormDialog form={form} close={() => setForm(null)} done={done} />}
      {asked === "snapshot" && (
        <Ask title={`Take a snapshot of ${name}`} label="Name of the snapshot" optional submit="Take it" close={close}
          about="The snapshot has the memory and the files as they are now. A sandbox that sleeps is not woken."
          run={(text) => act("snapshot", "The snapshot is ready.", "POST", "/snapshots", text ? { name: text } : {})} />
      )}
      {asked === "fork" && (
        <Ask title={`Fork ${name}`} label="Name of the new sandbox" submit="Fork" close={close}
          about="The new sandbox goes on where this one is. A snapshot is taken first, and stays. Memory is copied as it is, with the secrets in it."
          run={async (text) => {
            const ok = await act("fork", `${text} is ready.`, "POST", "/fork", { targetName: text, targetType: "sandbox" });
            if (ok) location.hash = at("sandboxes", text);
            return ok;
          }} />
      )}
      {asked === "delete" && (
        <Ask title={`Delete ${name}?`} label={`Type ${name} to confirm`} submit="Delete it" danger must={name} close={close}
          about="Its memory and its files are lost. Its snapshots stay."
          run={async () => {
            const ok = await act("delete", `${name} is deleted.`, "DELETE", "");
            if (ok) location.hash = at("sandboxes");
            return ok;
          }} />
      )}
    </>
  );
}

function Facts({ known: { sandbox, usage } }: { known: Known }): VNode {
  const t = now.value;
  const facts: [name: string, value: ComponentChildren][] = [];
  const m = usage.memory;
  facts.push(["Memory", <>{bytes(m.residentBytes)} <span class="quiet">of {bytes(m.limitBytes)}</span></>]);
  if (m.swapBytes) facts.push(["In swap", bytes(m.swapBytes)]);
  const disk = usage.disk;
  if (disk.checkpointBytes) facts.push(["Checkpoint", bytes(disk.checkpointBytes)]);
  if (disk.volumeBytes) facts.push(["Volumes", bytes(disk.volumeBytes)]);
  if (disk.storageLimitBytes) facts.push(["Files on disk", <>{bytes(disk.storageBytes)} <span class="quiet">of {bytes(disk.storageLimitBytes)}</span></>]);
  if (disk.scratchBytes) facts.push(["Ephemeral volumes", bytes(disk.scratchBytes)]);
  if (disk.archiveBytes) facts.push(["Archive", bytes(disk.archiveBytes)]);
  facts.push(["Processor", <>{usage.processor.seconds.toFixed(1)} s <span class="quiet">since {clock(usage.countedSince)}; {usage.processor.limit} at a time</span></>]);
  facts.push(["Network", <>{bytes(usage.network.receivedBytes)} in, {bytes(usage.network.sentBytes)} out</>]);
  facts.push(["Wakes", <>{usage.wakes.count} <span class="quiet">since {clock(usage.countedSince, false)}</span>{usage.wakes.failures > 0 && <>, {usage.wakes.failures} failed</>}{usage.wakes.count > 0 && <span class="quiet">; p50 {took(usage.wakes.p50Us)}, p99 {took(usage.wakes.p99Us)}</span>}</>]);
  facts.push(["Last use", usage.tier === "awake" ? "now" : ago(sandbox.lastUsedAt, t)]);
  if (sandbox.expiresIn !== undefined) facts.push(["Ends by itself", `in ${span(sandbox.expiresIn)}`]);
  facts.push(["Image", <code>{sandbox.spec.runtime.image}</code>]);
  facts.push(["Created", <>{sandbox.metadata.createdAt ? moment(sandbox.metadata.createdAt) : "–"} <span class="quiet">by {sandbox.metadata.createdBy}</span></>]);
  for (const v of sandbox.spec.volumes ?? []) facts.push([`Volume ${v.name}`, <code>{v.mountPath}</code>]);
  return <dl class="facts-grid card">{facts.map(([k, v]) => <div key={k}><dt>{k}</dt><dd>{v}</dd></div>)}</dl>;
}

const begins: Record<string, string> = {
  awake: "awake", paused: "paused", saved: "saved", swapped: "swap", disk: "disk",
  spare: "a machine that was ready", pool: "a machine that was ready", image: "its image", snapshot: "a snapshot",
};

/** The last wakes and creates, each with where its time went. */
function Wakes({ traces, usage }: { traces: Trace[]; usage: Usage }): VNode {
  const all = traces.toSorted((a, b) => Date.parse(b.startedAt) - Date.parse(a.startedAt));
  const [open, setOpen] = useState<string | null>(null);
  const first = all.find((t) => t.kind === "wake") ?? all[0];
  const chosen = all.find((t) => t.startedAt === open) ?? first;
  return (
    <section class="card wakes" aria-labelledby="wakes">
      <h2 id="wakes">Where the time of a wake went</h2>
      {!chosen ? (
        <p class="empty">No wake is remembered{usage.tier === "awake" ? ": it has not slept." : "."}</p>
      ) : (
        <>
          <p class="quiet" role="status">
            {chosen.kind === "wake" ? "Woke" : "Created"} {chosen.from && <>from <b>{begins[chosen.from] ?? chosen.from}</b></>} at {clock(chosen.startedAt)} in <b>{took(chosen.waitedUs)}</b>
            {chosen.status === "failed" && <span class="bad"> and failed: {chosen.error}</span>}
            {chosen.status === "running" && " – it is under way"}
          </p>
          <Stages trace={chosen} />
          {all.length > 1 && (
            <ul class="history" aria-label="Wakes that are remembered">
              {all.map((t) => (
                <li key={t.startedAt}>
                  <button type="button" aria-pressed={t === chosen} onClick={() => setOpen(t.startedAt)}>
                    <Dot tier={t.kind === "wake" ? t.from : ""} />
                    {t.kind === "wake" ? "wake" : "create"} {clock(t.startedAt)} <b class={t.status === "failed" ? "bad" : ""}>{t.status === "failed" ? "failed" : took(t.waitedUs)}</b>
                  </button>
                </li>
              ))}
            </ul>
          )}
        </>
      )}
    </section>
  );
}

function Stages({ trace }: { trace: Trace }): VNode {
  const whole = Math.max(trace.waitedUs, ...trace.stages.map((s) => s.startUs + s.tookUs), 1);
  return (
    <table class="stages">
      <thead class="unseen"><tr><th scope="col">Stage</th><th scope="col">When</th><th scope="col">Time</th></tr></thead>
      <tbody>
        {trace.stages.map((s, i) => (
          <tr key={i} class={s.within ? "within" : ""}>
            <th scope="row">{s.name}</th>
            <td class="lane">
              <span class="span" style={{ left: `${(100 * s.startUs) / whole}%`, width: `${Math.max(0.4, (100 * s.tookUs) / whole)}%` }} aria-hidden="true" />
              <span class="unseen">after {took(s.startUs)}</span>
            </td>
            <td class="number">{took(s.tookUs)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Events, wakes and snapshots of a sandbox as one line of time, the newest on top. */
function Life({ known: { sandbox, traces, snapshots } }: { known: Known }): VNode {
  interface Moment {
    time: number;
    text: ComponentChildren;
    kind: string;
  }
  const all: Moment[] = [];
  for (const e of sandbox.events ?? []) {
    all.push({ time: Date.parse(e.time), kind: e.type === "notice" ? "warned" : e.status === "FAILED" ? "bad" : "event", text: e.message });
  }
  for (const t of traces) {
    if (t.kind === "wake") {
      all.push({
        time: Date.parse(t.startedAt), kind: t.status === "failed" ? "bad" : "wake",
        text: t.status === "failed" ? `did not wake: ${t.error}` : <>woke from {begins[t.from] ?? t.from} in <b>{took(t.waitedUs)}</b></>,
      });
    }
  }
  for (const s of snapshots) if (s.createdAt) all.push({ time: Date.parse(s.createdAt), kind: "event", text: <>snapshot <b>{s.name}</b></> });
  all.sort((a, b) => b.time - a.time);
  return (
    <section class="card" aria-labelledby="life">
      <h2 id="life">Its life</h2>
      <ol class="life">
        {all.slice(0, 60).map((m, i) => (
          <li key={m.time + "." + i} class={m.kind}>
            <time dateTime={new Date(m.time).toISOString()} title={moment(m.time)}>{ago(m.time, now.value)}</time>
            <span>{m.text}</span>
          </li>
        ))}
      </ol>
      <p class="quiet">The platform remembers the last 16 wakes and creates, until it is started again. It does not record when the sandbox fell asleep.</p>
    </section>
  );
}

// Builds: images out of Dockerfiles, and their logs as they run.
import { useEffect, useRef, useState } from "preact/hooks";
import type { VNode } from "preact";
import { call, get, may, Refusal, type Answer } from "./api";
import { file, lines as raw, pairs, text, type Form, type Outcome } from "./form";
import { bytes, plural, took } from "./format";
import { BuildLog } from "./buildlog";
import { records, Status, Time } from "./records";
import { put } from "./transfer";
import { at, Fault, now, readOnly, reason, tell } from "./ui";

export type Failure = Answer<"BuildFailure">;

export type Build = Answer<"Build">;

export const ended = (b: Build): boolean => !["UPLOADING", "BUILDING", "DEPLOYING"].includes(b.status);

function lasted(b: Build): string {
  const from = Date.parse(b.startedAt ?? "");
  if (!from) return "–";
  return took(1000 * Math.max(0, (b.endedAt ? Date.parse(b.endedAt) : now.value) - from));
}

function State({ of: b }: { of: Build }): VNode {
  if (b.status === "BUILDING" && b.position) return <>waits, number {b.position} in the queue</>;
  return <Status is={b.status} />;
}

/** Offers to build an image of an archive. The log is shown as soon as the files are there. */
const upload = (): Form => ({
  title: "Build an image of an archive",
  about: "The archive has a directory with a Dockerfile. The platform runs its steps in a machine of the workspace.",
  submit: "Upload and build",
  fields: [
    { kind: "text", id: "name", label: "Name of the image", example: "app:2", hint: "Without a tag, it is latest. The tag moves when the build succeeds." },
    { kind: "file", id: "archive", label: "Archive", accept: ".zip,.tar,.tgz,.tar.gz,application/zip,application/x-tar,application/gzip", hint: "A zip, a tar or a tar.gz of at most 1 GiB." },
    { kind: "text", id: "dockerfile", label: "Path of the Dockerfile", optional: true, example: "Dockerfile" },
    { kind: "text", id: "target", label: "Stage to build", optional: true },
    { kind: "lines", id: "args", label: "Build arguments", optional: true, example: "VERSION=2", hint: "One NAME=value in each line. They are in the history of the image: put no secrets there." },
    { kind: "lines", id: "secrets", label: "Secrets", optional: true, secret: true, hint: "One ID=value in each line, for RUN --mount=type=secret. They are in no layer, log or answer." },
    { kind: "yes", id: "noCache", label: "Run every step, without the cache" },
  ],
  run: async (typed, progress, stop) => {
    const archive = file(typed, "archive");
    const asked = {
      name: text(typed, "name"),
      dockerfile: text(typed, "dockerfile") || undefined,
      target: text(typed, "target") || undefined,
      args: raw(typed, "args") ? pairs(typed, "args") : undefined,
      secrets: raw(typed, "secrets") ? pairs(typed, "secrets") : undefined,
      noCache: typed.has("noCache") || undefined,
    };
    const b = await call<Build>("POST", "/builds", asked);
    if (!b.uploadUrl) throw new Refusal(0, "The platform named no place for the files.");
    try {
      await put(b.uploadUrl, archive, progress, stop);
    } catch (e) {
      await call("DELETE", pathOf(b.id)).catch(() => undefined); // it may have failed by the files
      throw e;
    }
    return { said: `The build of ${b.name}:${b.tag} begins.`, go: at("images", "builds", b.id) };
  },
});

const pathOf = (id: string): string => "/builds/" + encodeURIComponent(id);

async function cancel(b: Build): Promise<Outcome> {
  await call("DELETE", pathOf(b.id));
  return { said: `The build of ${b.name}:${b.tag} is cancelled.` };
}

export const builds = records<Build>({
  title: "Builds",
  scope: "admin",
  path: () => "/builds",
  every: 3000,
  id: (b) => b.id,
  called: (b) => `the build of ${b.name}:${b.tag}`,
  words: (b) => `${b.name}:${b.tag} ${b.status} ${b.createdBy ?? ""}`,
  columns: [
    { name: "Image", show: (b) => <a href={at("images", "builds", b.id)}>{b.name}:{b.tag}</a> },
    { name: "Status", show: (b) => <State of={b} /> },
    { name: "What came of it", wide: true, show: (b) => b.failure?.message ?? b.image ?? "" },
    { name: "Took", number: true, show: lasted },
    { name: "Size", number: true, wide: true, show: (b) => (b.size ? bytes(b.size) : "–") },
    { name: "Begun", show: (b) => <Time at={b.createdAt} /> },
    { name: "By", wide: true, show: (b) => b.createdBy ?? "" },
  ],
  create: { label: "Build from an archive", scope: "admin", form: upload },
  acts: [{ label: "Cancel", scope: "admin", danger: true, when: (b) => !ended(b), run: cancel }],
  empty: "Nothing was built here. Upload an archive of a directory with a Dockerfile.",
});

const every = 1500;

export function BuildView({ id }: { id: string }): VNode {
  const [b, setBuild] = useState<Build | null>(null);
  const [fault, setFault] = useState("");
  const [busy, setBusy] = useState(false);
  const again = useRef<() => void>(() => undefined);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const next = async (): Promise<void> => {
      clearTimeout(timer);
      let over = false;
      try {
        const now = await get<Build>(pathOf(id), stop.signal);
        setBuild(now);
        setFault("");
        over = ended(now);
      } catch (e) {
        if (stop.signal.aborted) return;
        setFault(reason(e));
      }
      if (!over && !stop.signal.aborted) timer = window.setTimeout(() => void next(), every);
    };
    again.current = () => void next();
    void next();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [id]);
  useEffect(() => {
    if (b) document.title = `Build of ${b.name}:${b.tag} – Doze`;
  }, [b?.name, b?.tag]);
  const crumb = <p class="crumb"><a href={at("images", "builds")}>Builds</a></p>;
  if (!b) return <>{crumb}<h1>Build</h1>{fault ? <Fault>{fault}</Fault> : <p class="quiet" role="status">Looking…</p>}</>;
  const stop = async (): Promise<void> => {
    setBusy(true);
    try {
      tell((await cancel(b)).said);
    } catch (e) {
      tell(reason(e), true);
    }
    setBusy(false);
    again.current();
  };
  const f = b.failure;
  return (
    <>
      {crumb}
      <div class="bar subject">
        <h1>{b.name}:{b.tag}</h1>
        <span class="state big" role="status" data-status={b.status}><State of={b} /></span>
        {!ended(b) && !readOnly.value && may("admin") && <button type="button" class="danger" disabled={busy} onClick={() => void stop()}>Cancel the build</button>}
      </div>
      {fault && <Fault>{fault}</Fault>}
      {f && (
        <section class="card failure" aria-labelledby="failure">
          <h2 id="failure" class="bad">{f.step ? `Step ${f.step} failed` : "The build failed"}</h2>
          <p>{f.message}</p>
          {f.command && <p><code>{f.command}</code>{f.line ? <span class="quiet"> line {f.line} of {b.dockerfile || "Dockerfile"}</span> : null}</p>}
          {f.output && f.output.length > 0 && <pre>{f.output.join("\n")}</pre>}
        </section>
      )}
      <dl class="facts-grid card">
        <div><dt>Took</dt><dd>{lasted(b)}</dd></div>
        <div><dt>Begun</dt><dd><Time at={b.createdAt} /> <span class="quiet">by {b.createdBy}</span></dd></div>
        {b.image && <div><dt>Image</dt><dd><a href={at("images", "sandbox", b.name)}>{b.image}</a></dd></div>}
        {b.size ? <div><dt>Size</dt><dd>{bytes(b.size)}</dd></div> : null}
        {b.target && <div><dt>Stage</dt><dd><code>{b.target}</code></dd></div>}
        {b.args && <div><dt>{plural(Object.keys(b.args).length, "argument")}</dt><dd>{Object.entries(b.args).map(([k, v]) => <div key={k}><code>{k}={v}</code></div>)}</dd></div>}
      </dl>
      <BuildLog id={id} done={() => again.current()} />
    </>
  );
}

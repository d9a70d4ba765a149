// What a sandbox was forked from, its snapshots, and the forks that were made of each. The
// feed knows the forks, so that the platform is asked for nothing but the origin.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { VNode } from "preact";
import "./tree.css";
import { call, get, may, Refusal, type Origin, type Sandbox, type Snapshot } from "./api";
import { FormDialog, text, type Form } from "./form";
import { bytes, moment, plural } from "./format";
import { link, rows, type Row } from "./live";
import { Time } from "./records";
import { stateName } from "./sandboxes";
import { at, Dot, readOnly } from "./ui";

const pageOf = 20; // snapshots, and forks of one snapshot, until somebody asks for more

const pathOf = (s: Snapshot): string => "/snapshots/" + encodeURIComponent(s.id);

function forking(s: Snapshot): Form {
  return {
    title: `Fork the snapshot ${s.name}`,
    about: `The new sandbox goes on where ${s.sandboxName} was then. Memory is copied as it was, with the secrets in it.`,
    submit: "Fork",
    fields: [{ kind: "text", id: "target", label: "Name of the new sandbox" }],
    run: async (typed) => {
      const target = text(typed, "target");
      await call("POST", pathOf(s) + "/fork", { targetName: target, targetType: "sandbox" });
      return { said: `${target} is ready.`, go: at("sandboxes", target) };
    },
  };
}

function restoring(s: Snapshot, sandbox: Sandbox): Form {
  const { name } = sandbox.metadata;
  return {
    title: `Restore ${name} to ${s.name}?`,
    about: `Lost is what ${name} did since ${s.createdAt ? moment(s.createdAt) : "then"}: memory, files and processes. Take a snapshot first to keep it. Image, memory and ports become those of the snapshot. Its name, address, previews, variables and deadlines stay. It is awake after that. If the snapshot does not start, nothing changes.`,
    submit: "Restore and wake it",
    danger: true,
    confirm: name,
    run: async () => {
      await call("POST", `/sandboxes/${encodeURIComponent(name)}/snapshots/${encodeURIComponent(s.id)}/restore`);
      return { said: `${name} is as it was in ${s.name}.` };
    },
  };
}

function deleting(s: Snapshot): Form {
  return {
    title: `Delete the snapshot ${s.name}?`,
    about: `${s.sandboxName} and the forks of the snapshot go on. Nobody can fork or restore the snapshot any more.`,
    submit: "Delete it",
    danger: true,
    confirm: s.name,
    run: async () => {
      await call("DELETE", pathOf(s));
      return { said: `The snapshot ${s.name} is deleted.` };
    },
  };
}

/** The forks of a sandbox that the feed shows, by the snapshot that each was made of. */
function forksOf(name: string, snapshots: readonly Snapshot[], all: readonly Row[]): Map<string, Row[]> {
  const own = new Set(snapshots.map((s) => s.id));
  const found = new Map<string, Row[]>();
  for (const r of all) {
    const { origin } = r.feed;
    if (!origin || (!own.has(origin.snapshotId) && origin.sandboxName !== name)) continue;
    const id = own.has(origin.snapshotId) ? origin.snapshotId : "";
    found.set(id, [...(found.get(id) ?? []), r]);
  }
  for (const forks of found.values()) forks.sort((a, b) => a.created - b.created || a.rank - b.rank);
  return found;
}

interface Props {
  sandbox: Sandbox;
  snapshots: readonly Snapshot[];
  done: () => void;
}

export function Tree({ sandbox, snapshots, done }: Props): VNode | null {
  const [form, setForm] = useState<Form | null>(null);
  const [most, setMost] = useState(pageOf);
  const heading = useRef<HTMLHeadingElement>(null);
  const { name } = sandbox.metadata;
  const all = rows.value;
  const forks = useMemo(() => forksOf(name, snapshots, all), [name, snapshots, all]);
  const newest = useMemo(() => snapshots.toSorted((a, b) => Date.parse(b.createdAt ?? "") - Date.parse(a.createdAt ?? "")), [snapshots]);
  const others = forks.get("") ?? [];
  if (snapshots.length === 0 && others.length === 0 && !sandbox.origin) return null;
  const count = [...forks.values()].reduce((n, f) => n + f.length, 0);
  const writes = (scope: string): boolean => !readOnly.value && may(scope);
  const restores = (sandbox.status === "DEPLOYED" || sandbox.status === "FAILED") && sandbox.spec.enabled !== false && writes("sandboxes:update");
  const close = (): void => {
    setForm(null);
    // The snapshot may be gone, and its buttons with it.
    setTimeout(() => {
      if (document.activeElement === document.body) heading.current?.focus({ preventScroll: true });
    }, 300);
  };
  const button = (label: string, s: Snapshot, form: Form, kind = ""): VNode => (
    <button type="button" class={"small " + kind} onClick={() => setForm(form)}>{label}<span class="unseen"> {s.name}</span></button>
  );
  return (
    <section class="card tree" aria-labelledby="snapshots">
      <h2 id="snapshots" ref={heading} tabIndex={-1}>{plural(snapshots.length, "snapshot")}, {plural(count, "fork")}</h2>
      {sandbox.origin && <From key={sandbox.origin.snapshotId} origin={sandbox.origin} />}
      {link.value === "denied" && <p class="quiet">Forks are not shown: your rights do not allow a list of sandboxes.</p>}
      <ul class="snapshots" aria-label="Snapshots and their forks, the newest snapshot first">
        {newest.slice(0, most).map((s) => (
          <li key={s.id} data-snapshot={s.name}>
            <div class="node">
              <span>
                <b>{s.name}</b> <span class="quiet">{s.status === "ready" ? "" : s.status + ", "}{s.bytes ? bytes(s.bytes) + ", " : ""}<Time at={s.createdAt} /></span>
                {s.message && <span class="bad"> {s.message}</span>}
              </span>
              <div class="does">
                {s.status === "ready" && writes("sandboxes:create") && button("Fork", s, forking(s))}
                {s.status === "ready" && restores && button("Restore", s, restoring(s, sandbox))}
                {s.status !== "pending" && writes("sandboxes:delete") && button("Delete", s, deleting(s), "danger")}
              </div>
            </div>
            <Forks of={`the snapshot ${s.name}`} forks={forks.get(s.id) ?? []} />
          </li>
        ))}
        {others.length > 0 && (
          <li>
            <div class="node"><span class="quiet">Deleted snapshots, or those of another sandbox that had this name</span></div>
            <Forks of="other snapshots" forks={others} />
          </li>
        )}
      </ul>
      {newest.length > most && <button type="button" class="small" onClick={() => setMost(most + pageOf)}>Show more of {plural(newest.length, "snapshot")}</button>}
      {form && <FormDialog form={form} close={close} done={done} />}
    </section>
  );
}

function Forks({ of, forks }: { of: string; forks: readonly Row[] }): VNode | null {
  const [most, setMost] = useState(pageOf);
  if (forks.length === 0) return null;
  return (
    <ul aria-label={`Forks of ${of}`}>
      {forks.slice(0, most).map((r) => (
        <li key={r.name} data-fork={r.name}>
          <div class="node">
            <span>
              <a href={at("sandboxes", r.name)}>{r.name}</a> <span class="state"><Dot tier={r.tier} />{stateName(r)}</span>{" "}
              <span class="quiet">{r.memory ? bytes(r.memory) + " of memory, " : ""}{r.disk ? bytes(r.disk) + " on disk, " : ""}<Time at={r.feed.createdAt} /></span>
            </span>
          </div>
        </li>
      ))}
      {forks.length > most && <li><button type="button" class="small" onClick={() => setMost(most + pageOf)}>Show more of {plural(forks.length, "fork")}</button></li>}
    </ul>
  );
}

/** What a sandbox was forked from. The snapshot and its sandbox may be gone. */
function From({ origin }: { origin: Origin }): VNode {
  const [snapshot, setSnapshot] = useState<Snapshot | null>(null);
  const [gone, setGone] = useState(false);
  useEffect(() => {
    const stop = new AbortController();
    get<Snapshot>("/snapshots/" + encodeURIComponent(origin.snapshotId), stop.signal).then(setSnapshot, (e: unknown) => {
      if (e instanceof Refusal && e.status === 404) setGone(true); // else the name alone is shown
    });
    return () => stop.abort();
  }, [origin.snapshotId]);
  const there = !gone && snapshot?.source.deleted === false;
  return (
    <p class="origin">
      Forked from the snapshot <b>{origin.snapshotName}</b> of {there ? <a href={at("sandboxes", origin.sandboxName)}>{origin.sandboxName}</a> : <b>{origin.sandboxName}</b>}
      <span class="quiet">
        {snapshot?.bytes ? `, ${bytes(snapshot.bytes)}` : ""}
        {gone ? ". The snapshot is deleted." : snapshot?.source.deleted ? ". That sandbox is deleted." : "."}
      </span>
    </p>
  );
}

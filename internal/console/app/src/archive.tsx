// Into an archive and back. An archive keeps the files of a sandbox, and no machine.
import { useEffect, useRef, useState } from "preact/hooks";
import type { VNode } from "preact";
import { call, may, type Sandbox } from "./api";
import { carryOut } from "./ask";
import type { Form } from "./form";
import { ago, bytes } from "./format";
import { now, readOnly, tell } from "./ui";

/** Asks before a sandbox is archived. */
export function archiving(name: string, awake: boolean): Form {
  return {
    title: `Archive ${name}?`,
    about: `The archive keeps its files, and the processes that the API started. Lost are memory, other processes, and what is in /tmp. Its machine ends, and no request wakes it until somebody brings it back.${awake ? "" : " It sleeps: the platform wakes it for its archive."}`,
    submit: awake ? "Archive it" : "Wake and archive it",
    danger: true,
    run: async () => {
      await call("POST", `/sandboxes/${encodeURIComponent(name)}/archive`);
      return { said: `${name} is being archived.` };
    },
  };
}

/** What a sandbox was, what it is, and what that means: a change that failed goes back. */
const ends: Record<string, { to: string; said: string; bad?: boolean }[]> = {
  ARCHIVING: [{ to: "ARCHIVED", said: "is archived." }, { to: "DEPLOYED", said: "is not archived", bad: true }],
  UNARCHIVING: [{ to: "DEPLOYED", said: "is back." }, { to: "ARCHIVED", said: "is not back", bad: true }],
};

interface Props {
  name: string;
  sandbox: Sandbox;
  done: () => void;
}

/** Says that a sandbox is archived, and offers to bring it back. It tells what came of a change. */
export function Archived({ name, sandbox, done }: Props): VNode | null {
  const [busy, setBusy] = useState(false);
  const status = sandbox.status ?? "";
  const before = useRef("");
  useEffect(() => {
    const end = ends[before.current]?.find((e) => e.to === status);
    if (end) tell(`${name} ${end.said}${end.bad ? `: ${sandbox.events?.at(-1)?.message ?? "its events say why"}.` : ""}`, end.bad);
    before.current = status;
  }, [name, status]);
  const { archive } = sandbox;
  if (status === "ARCHIVING") return <p class="card archived" role="status">It is being archived. Its processes have time to end first.</p>;
  if (status === "UNARCHIVING") {
    return <p class="card archived" role="status">It is being brought back{archive?.size ? `: ${bytes(archive.size)} of files` : ""}. Requests wait for it.</p>;
  }
  if (status !== "ARCHIVED") return null;
  const back = async (): Promise<void> => {
    setBusy(true);
    await carryOut(`${name} is being brought back.`, "POST", `/sandboxes/${encodeURIComponent(name)}/unarchive`);
    setBusy(false);
    done();
  };
  return (
    <div class="card archived">
      <p role="status">
        <b>It is archived</b>{archive?.createdAt && <> <span class="quiet">{ago(archive.createdAt, now.value)}</span></>}. Its files take {bytes(archive?.size ?? 0)}, and it has no machine. No request wakes it.
      </p>
      {!readOnly.value && may("sandboxes:update") && (
        <button type="button" class="primary" data-action="unarchive" disabled={busy} onClick={() => void back()}>{busy ? "Wait…" : "Bring it back"}</button>
      )}
    </div>
  );
}

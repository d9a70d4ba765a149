// A table of records of the API: one component for all lists of one kind, with what one may
// do with a record. What it shows and offers is data.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ComponentChildren, VNode } from "preact";
import "./records.css";
import { call, get, may, Refusal, type List } from "./api";
import { FormDialog, type Form, type Outcome } from "./form";
import { ago, count, moment } from "./format";
import { shown } from "./live";
import { Fault, now, place, readOnly, reason, tell } from "./ui";

export interface Column<T> {
  name: string;
  show: (record: T) => ComponentChildren;
  number?: boolean;
  /** A narrow screen leaves it out. */
  wide?: boolean;
}

/** What one may do with a record. */
export interface Act<T> {
  label: string;
  scope: string;
  danger?: boolean;
  when?: (record: T) => boolean;
  /** What it asks before. Without it, run does it at once. */
  form?: (record: T) => Form;
  run?: (record: T) => Promise<Outcome>;
}

/** A list of the API, and how it is shown. */
export interface Records<T> {
  title: string;
  about?: ComponentChildren;
  /** What a caller needs to see the list. */
  scope: string;
  path: (query: URLSearchParams) => string;
  /** Finds the records in an answer that is no list. */
  pick?: (answer: unknown) => T[];
  /** Whether the API gives the list in pages. It searches then. */
  paged?: boolean;
  /** How often to ask again, in milliseconds. The default is never. */
  every?: number;
  id: (record: T) => string;
  /** What people call it, if that is not its id. */
  called?: (record: T) => string;
  /** What a search looks in, of a list without pages. */
  words: (record: T) => string;
  columns: readonly Column<T>[];
  acts?: readonly Act<T>[];
  create?: { label: string; scope: string; form: () => Form };
  empty: string;
}

/** A list that somebody shows, whatever its records are. */
export interface Shown {
  title: string;
  scope: string;
  view: () => VNode;
}

export const records = <T,>(r: Records<T>): Shown => ({ title: r.title, scope: r.scope, view: () => <Table of={r} /> });

const pageOf = 100;
/** It changes with each action: all tables that are shown ask again. */
const changes = signal(0);

/** What an API gives as a list: an array, or a page. */
const page = <T,>(all: T[] | List<T>): { data: T[]; next: string } => (Array.isArray(all) ? { data: all, next: "" } : { data: all.data, next: all.meta.nextCursor ?? "" });

function address(path: string, parameters: Record<string, string>): string {
  const more = new URLSearchParams(Object.entries(parameters).filter(([, v]) => v)).toString();
  return more ? path + (path.includes("?") ? "&" : "?") + more : path;
}

function Table<T>({ of: r }: { of: Records<T> }): VNode {
  const [all, setAll] = useState<T[] | null>(null);
  const [next, setNext] = useState("");
  const [most, setMost] = useState(pageOf);
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const [form, setForm] = useState<Form | null>(null);
  const current = useRef(""); // what the rows are the answer to
  const grown = useRef(false); // there are more pages than the first
  const heading = useRef<HTMLHeadingElement>(null);
  const query = place.value.query;
  const search = (query.get("q") ?? "").trim();
  const path = r.path(query);
  const asked = r.paged ? address(path, { limit: String(pageOf), q: search }) : path;
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    current.current = asked;
    grown.current = false;
    const ask = async (): Promise<void> => {
      let wait = r.every ?? 0;
      await shown(stop.signal);
      if (!stop.signal.aborted && !grown.current) {
        try {
          const answer = await get<T[] | List<T>>(asked, stop.signal);
          const p = page(r.pick ? r.pick(answer) : answer);
          setAll(p.data);
          setNext(p.next);
          setFault("");
        } catch (e) {
          if (stop.signal.aborted) return;
          if (e instanceof Refusal && e.status === 404) setAll(null);
          setFault(reason(e));
          wait *= 4;
        }
      }
      if (wait && !stop.signal.aborted) timer = window.setTimeout(() => void ask(), wait);
    };
    timer = window.setTimeout(() => void ask(), all === null || !search ? 0 : 250); // a reader may still be typing
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [asked, changes.value]);
  const done = (): void => void changes.value++;
  const more = async (): Promise<void> => {
    if (!next) return setMost(most + pageOf);
    setBusy(true);
    try {
      const p = page(await get<T[] | List<T>>(address(asked, { cursor: next })));
      if (current.current !== asked) return setBusy(false); // the reader searches for something else
      grown.current = true; // a reader who went on keeps the pages
      setAll([...(all ?? []), ...p.data]);
      setMost(most + p.data.length);
      setNext(p.next);
    } catch (e) {
      tell(reason(e), true);
    }
    setBusy(false);
  };
  const act = async (a: Act<T>, record: T): Promise<void> => {
    if (a.form) return setForm(a.form(record));
    if (!a.run) return;
    setBusy(true);
    try {
      const out = await a.run(record);
      tell(out.said);
    } catch (e) {
      tell(reason(e), true);
    }
    setBusy(false);
    done();
  };
  const close = (): void => {
    setForm(null);
    // Its record may be gone, and the button with it.
    setTimeout(() => {
      if (document.activeElement === document.body) heading.current?.focus({ preventScroll: true });
    }, 300);
  };
  const wanted = search.toLowerCase();
  const fits = r.paged || !wanted ? all : all?.filter((record) => r.words(record).toLowerCase().includes(wanted)) ?? null;
  const acts = readOnly.value ? [] : (r.acts ?? []).filter((a) => may(a.scope));
  const create = !readOnly.value && r.create && may(r.create.scope) ? r.create : null;
  return (
    <section class="card records" aria-label={r.title}>
      <div class="bar">
        <h2 ref={heading} tabIndex={-1}>{r.title}{all && <span class="quiet"> {count(fits?.length ?? 0)}{next && " or more"}</span>}</h2>
        {create && <button type="button" class="small primary" onClick={() => setForm(create.form())}>{create.label}</button>}
      </div>
      {r.about && <p class="quiet">{r.about}</p>}
      {fault && <Fault>{fault}</Fault>}
      {!all && !fault && <p class="quiet" role="status">Looking…</p>}
      {fits?.length === 0 && <p class="empty">{search ? "Nothing fits the search." : r.empty}</p>}
      {fits && fits.length > 0 && (
        <div class="scrolls" role="region" aria-label={"Table: " + r.title} tabIndex={0}>
          <table class="facts">
            <thead>
              <tr>
                {r.columns.map((c) => <th key={c.name} scope="col" class={kind(c)}>{c.name}</th>)}
                {acts.length > 0 && <td class="does" />}
              </tr>
            </thead>
            <tbody>
              {fits.slice(0, most).map((record) => (
                <tr key={r.id(record)} data-id={r.id(record)}>
                  {r.columns.map((c) => <td key={c.name} class={kind(c)}>{c.show(record)}</td>)}
                  {acts.length > 0 && (
                    <td class="does">
                      {acts.filter((a) => !a.when || a.when(record)).map((a) => (
                        <button key={a.label} type="button" class={a.danger ? "small danger" : "small"} disabled={busy} onClick={() => void act(a, record)}>
                          {a.label}<span class="unseen"> {(r.called ?? r.id)(record)}</span>
                        </button>
                      ))}
                    </td>
                  )}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {fits && (next || fits.length > most) && <button type="button" class="small" disabled={busy} onClick={() => void more()}>Show more</button>}
      {form && <FormDialog form={form} close={close} done={done} />}
    </section>
  );
}

const kind = <T,>(c: Column<T>): string => [c.number && "number", c.wide && "wide-only"].filter(Boolean).join(" ");

/** How long ago something was. The whole time is a tip. */
export const Time = ({ at, none = "–" }: { at: string | undefined; none?: string }): VNode =>
  at ? <time dateTime={at} title={moment(at)}>{ago(at, now.value)}</time> : <span class="quiet">{none}</span>;

const bad = new Set(["FAILED", "failed", "denied", "CANCELLED"]);
const good = new Set(["DEPLOYED", "BUILT", "READY", "verified", "succeeded", "done", "ready"]);

export const Status = ({ is }: { is: string | undefined }): VNode => {
  const text = is ?? "";
  return <span class={bad.has(text) ? "bad" : good.has(text) ? "good" : ""}>{text.toLowerCase()}</span>;
};

/** Deletes a record, after a question. */
export function deletion<T>(scope: string, what: (record: T) => { noun: string; name: string; path: string; about?: string; confirm?: boolean }): Act<T> {
  return {
    label: "Delete", scope, danger: true,
    form: (record) => {
      const { noun, name, path, about, confirm } = what(record);
      return {
        title: `Delete the ${noun} ${name}?`, about, submit: "Delete it", danger: true, confirm: confirm ? name : undefined,
        run: async () => {
          await call("DELETE", path);
          return { said: `The ${noun} ${name} is deleted.` };
        },
      };
    },
  };
}

// What is around each view: the way around, who is there, and how the page looks.
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { caller, logOut, open, session, workspaces } from "./api";
import { areaAt, open as seen } from "./area";
import { checkup } from "./findings";
import { link, look, rows, trouble } from "./live";
import { Overview } from "./overview";
import { areas } from "./pages";
import { SandboxView } from "./sandbox";
import { Sandboxes } from "./sandboxes";
import { at, dismiss, Logo, notices, place, readOnly, reason, Switch, tell, theme, type Theme } from "./ui";

interface View {
  path: string;
  name: string;
}

const views: readonly View[] = [
  { path: "", name: "Overview" },
  { path: "sandboxes", name: "Sandboxes" },
  ...[...areas].map(([path, area]) => ({ path, name: area.name })),
];

/** Whether the caller may see some of a view. */
const offered = (v: View): boolean => {
  const area = areas.get(v.path);
  return !area || (area.pages.some(seen) && (area.here?.() ?? true));
};

function content(): VNode {
  const [first, second] = place.value.path;
  const area = first ? areas.get(first) : undefined;
  if (!first) return <Overview />;
  if (first === "sandboxes" && second) return <SandboxView key={second} name={second} />;
  if (first === "sandboxes") return <Sandboxes />;
  const found = area && areaAt(area, place.value.path);
  if (found) return found;
  return (
    <section>
      <h1>There is no such view</h1>
      <p><a href={at()}>Go to the overview</a></p>
    </section>
  );
}

export function Shell(): VNode {
  const main = useRef<HTMLElement>(null);
  const path = place.value.path.join("/");
  const began = useRef(true);
  useEffect(() => {
    if (began.current) {
      began.current = false;
      return;
    }
    main.current?.focus({ preventScroll: true }); // a reader hears the new view
    scrollTo(0, 0);
  }, [path]);
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), main.current?.focus())}>Skip to the content</a>
      <header class="top">
        <a class="brand" href={at()}><Logo />Doze</a>
        <nav aria-label="Views">
          {views.filter(offered).map((v) => (
            <a key={v.path} href={at(...(v.path ? [v.path] : []))} aria-current={(place.value.path[0] ?? "") === v.path ? "page" : undefined}>
              {v.name}
              {v.path === "" && !!checkup.value?.findings.length && <span class="count amiss" title="Warnings of the host"><span class="unseen">, warnings: </span>{checkup.value.findings.length}</span>}
              {v.path === "sandboxes" && <span class="count" aria-hidden="true">{rows.value.length}</span>}
            </a>
          ))}
        </nav>
        <Signal />
        <Menu />
      </header>
      <main id="main" ref={main} tabIndex={-1}>{content()}</main>
      <div class="notices" aria-live="polite" role="status">
        {notices.value.map((n) => (
          <div key={n.id} class={n.bad ? "notice bad" : "notice"}>
            <span>{n.text}</span>
            <button type="button" class="plain" aria-label="Dismiss this notice" onClick={() => dismiss(n.id)}>×</button>
          </div>
        ))}
      </div>
    </>
  );
}

/** Says whether what is shown is what is. */
function Signal(): VNode {
  const words = { first: "Loading", live: "Live", cut: "No connection", denied: "Not allowed" }[link.value];
  return (
    <div class={"signal " + link.value} role="status">
      <span class="light" aria-hidden="true" />
      <span class="word" title={trouble.value || undefined}>{words}</span>
      {link.value === "cut" && <button type="button" class="small" onClick={look}>Try now</button>}
    </div>
  );
}

function Menu(): VNode {
  const [open_, setOpen] = useState(false);
  const [all, setAll] = useState<string[]>([]);
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const c = caller.value;
  useEffect(() => {
    if (!open_) return;
    workspaces().then(setAll, () => setAll([]));
    const outside = (e: Event): void => {
      if (!box.current?.contains(e.target as Node)) setOpen(false);
    };
    const key = (e: KeyboardEvent): void => {
      if (e.key !== "Escape") return;
      setOpen(false);
      button.current?.focus();
    };
    addEventListener("pointerdown", outside);
    addEventListener("keydown", key);
    return () => {
      removeEventListener("pointerdown", outside);
      removeEventListener("keydown", key);
    };
  }, [open_]);
  const enter = async (workspace: string): Promise<void> => {
    const s = session.value;
    if (!s) return;
    try {
      await open({ ...s, workspace });
      location.hash = at();
    } catch (e) {
      tell(reason(e), true);
    }
  };
  return (
    <div class="menu" ref={box}>
      <button ref={button} type="button" class="who" aria-expanded={open_} aria-controls="menu" onClick={() => setOpen(!open_)}>
        <span class="face" aria-hidden="true">{(c?.sub ?? "?").charAt(0).toUpperCase()}</span>
        <span class="names">
          <span>{c?.sub}</span>
          <span class="quiet">{c?.workspace}{readOnly.value && ", read-only"}</span>
        </span>
      </button>
      {open_ && (
        <div id="menu" class="sheet">
          <p class="quiet">
            {c?.sub} is {c?.role === "admin" ? "an admin" : `a ${c?.role || "guest"}`} of {c?.workspace}
          </p>
          {all.length > 1 && (
            <label>
              Workspace
              <select value={c?.workspace} onChange={(e) => void enter(e.currentTarget.value)}>
                {all.map((w) => <option key={w} value={w}>{w}</option>)}
              </select>
            </label>
          )}
          <label>
            Colours
            <select value={theme.value} onChange={(e) => (theme.value = e.currentTarget.value as Theme)}>
              <option value="auto">As the system</option>
              <option value="dark">Dark</option>
              <option value="light">Light</option>
            </select>
          </label>
          <Switch label="Read-only" on={readOnly.value} set={(on) => (readOnly.value = on)} />
          <a class="button" href="/docs" target="_blank" rel="noopener">Reference of the APIs</a>
          <button type="button" onClick={() => void logOut()}>Log out</button>
        </div>
      )}
    </div>
  );
}

// Pages of one kind, with a list of them at the side.
import type { ComponentChildren, VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { caller, may } from "./api";
import type { Shown } from "./records";
import { ask, at, place } from "./ui";

/** One page. */
export interface Page {
  /** The address behind #/. */
  path: readonly string[];
  name: string;
  about: ComponentChildren;
  parts: readonly Shown[];
  /** What is above the parts, instead of the field to search in them. */
  tools?: () => VNode;
  /** The page of one of its records. Its path has that of the page in front. */
  one?: (...path: string[]) => VNode | null;
}

export interface Area {
  name: string;
  pages: readonly Page[];
  /** Whether the platform has what the area shows. Without it, each platform has. */
  here?: () => boolean;
}

/** Whether the caller may see some of a page. */
export const open = (p: Page): boolean => p.parts.some((s) => may(s.scope));

const below = (path: readonly string[], base: readonly string[]): boolean => base.every((part, i) => path[i] === part);

/** The view of an area at an address, or null if it has none there. */
export function areaAt(area: Area, path: readonly string[]): VNode | null {
  const found = area.pages.filter((p) => below(path, p.path)).sort((a, b) => b.path.length - a.path.length)[0];
  const page = found ?? (path.length === 1 ? (area.pages.find(open) ?? area.pages[0]) : undefined);
  if (!page) return null;
  const rest = path.slice(page.path.length);
  const one = rest.length > 0 ? page.one?.(...rest) : undefined;
  if (rest.length > 0 && !one) return null;
  return (
    <div class="area">
      <Links area={area} page={page} whole={!one} />
      <div class="of-page">
        {!open(page) ? <Closed page={page} /> : one ? <Title key={path.join("/")} text={rest.at(-1) ?? ""}>{one}</Title> : <Whole key={page.name} page={page} />}
      </div>
    </div>
  );
}

function Links({ area, page, whole }: { area: Area; page: Page; whole: boolean }): VNode {
  const nav = useRef<HTMLElement>(null);
  useEffect(() => {
    // On a phone, the links are in one line.
    const n = nav.current;
    const here = n?.querySelector<HTMLElement>("[aria-current]");
    if (n && here) n.scrollLeft = here.offsetLeft - n.offsetLeft - (n.clientWidth - here.offsetWidth) / 2;
  }, [page]);
  return (
    <nav ref={nav} class="pages" aria-label={"Pages of " + area.name}>
      {area.pages.filter(open).map((p) => (
        <a key={p.name} href={at(...p.path)} aria-current={p === page ? (whole ? "page" : "true") : undefined}>{p.name}</a>
      ))}
    </nav>
  );
}

function Title({ text, children }: { text: string; children: ComponentChildren }): VNode {
  useEffect(() => void (document.title = `${text} – Doze`), [text]);
  return <>{children}</>;
}

function Closed({ page }: { page: Page }): VNode {
  return (
    <Title text={page.name}>
      <h1>{page.name}</h1>
      <p class="empty card">
        You may not see this page: it needs the right <code>{page.parts[0]?.scope}</code> in {caller.value?.workspace}. Ask an admin of the workspace.
      </p>
    </Title>
  );
}

function Whole({ page }: { page: Page }): VNode {
  const query = place.value.query;
  const search = (words: string): void => {
    const q = new URLSearchParams(query);
    if (words) q.set("q", words);
    else q.delete("q");
    ask(q);
  };
  return (
    <Title text={page.name}>
      <div class="bar subject">
        <h1>{page.name}</h1>
        {!page.tools && <input type="search" class="find" aria-label={"Search in " + page.name} placeholder="Search" spellcheck={false} value={query.get("q") ?? ""} onInput={(e) => search(e.currentTarget.value)} />}
      </div>
      <p class="quiet">{page.about}</p>
      {page.tools?.()}
      {page.parts.filter((s) => may(s.scope)).map((s) => <div key={s.title}>{s.view()}</div>)}
    </Title>
  );
}

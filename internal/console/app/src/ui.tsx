// Small parts that several views have: state of the whole page, notices, dialogs, icons.
import { effect, signal } from "@preact/signals";
import type { ComponentChildren, JSX, VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Refusal } from "./api";

/** Where the page is: the parts of the path behind #/, and the query. */
export interface Place {
  path: string[];
  query: URLSearchParams;
}

function where(): Place {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

export const place = signal<Place>(where());
addEventListener("hashchange", () => (place.value = where()));

export const at = (...path: string[]): string => "#/" + path.map(encodeURIComponent).join("/");

/** Replaces the query of the address. A reader who goes back does not go through each letter. */
export function ask(query: URLSearchParams): void {
  const text = query.toString();
  history.replaceState(null, "", "#/" + place.value.path.map(encodeURIComponent).join("/") + (text ? "?" + text : ""));
  place.value = where();
}

/** The time, for words such as "2 min ago". It stands still while the page is hidden. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

export type Theme = "auto" | "dark" | "light";

function kept(name: string): string {
  try {
    return localStorage.getItem(name) ?? "";
  } catch {
    return ""; // a browser may refuse storage
  }
}

function keep(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // it holds for this page then
  }
}

export const theme = signal<Theme>((["dark", "light"] as const).find((t) => t === kept("doze.theme")) ?? "auto");
export const readOnly = signal(kept("doze.readonly") === "yes");
/** It changes whenever the colours do. */
export const colours = signal(0);

const system = matchMedia("(prefers-color-scheme: light)");
effect(() => {
  const t = theme.value;
  keep("doze.theme", t);
  document.documentElement.dataset.theme = t === "auto" ? (system.matches ? "light" : "dark") : t;
  colours.value = colours.peek() + 1;
});
system.addEventListener("change", repaint);
function repaint(): void {
  if (theme.value === "auto") document.documentElement.dataset.theme = system.matches ? "light" : "dark";
  colours.value++;
}
effect(() => keep("doze.readonly", readOnly.value ? "yes" : "no"));

export const still = matchMedia("(prefers-reduced-motion: reduce)");

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** What the page says of something that was done, for eyes and ears. */
export interface Notice {
  id: number;
  text: string;
  bad: boolean;
}

export const notices = signal<Notice[]>([]);
let ids = 0;

export function tell(text: string, bad = false): void {
  const n = { id: ++ids, text, bad };
  notices.value = [...notices.value.slice(-3), n];
  setTimeout(() => dismiss(n.id), bad ? 12_000 : 5_000);
}

export function dismiss(id: number): void {
  notices.value = notices.value.filter((n) => n.id !== id);
}

export const reason = (e: unknown): string => (e instanceof Refusal ? e.message : e instanceof Error ? e.message : String(e));

const shapes = {
  logo: "M20.5 6.5a10 10 0 1 0 5 13.2A8.3 8.3 0 0 1 20.5 6.5Z",
};

export function Logo(): VNode {
  return (
    <svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
      <path d={shapes.logo} class="moon" />
      <path d="M20 13h5l-5 6h5" class="zed" />
    </svg>
  );
}

export function Dot({ tier }: { tier: string }): VNode {
  return <span class={`dot tier-${tier || "none"}`} aria-hidden="true" />;
}

interface DialogProps {
  title: string;
  close: () => void;
  children: ComponentChildren;
}

/** A modal dialog: the browser keeps the focus in it, and Escape closes it. */
export function Dialog({ title, close, children }: DialogProps): VNode {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    ref.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog ref={ref} onClose={close} aria-labelledby="dialog-title">
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

interface SwitchProps {
  label: string;
  on: boolean;
  set: (on: boolean) => void;
}

export function Switch({ label, on, set }: SwitchProps): VNode {
  return (
    <button type="button" role="switch" class="switch" aria-checked={on} onClick={() => set(!on)}>
      <span class="track" aria-hidden="true">
        <span class="knob" />
      </span>
      {label}
    </button>
  );
}

export function Fault({ children }: { children: ComponentChildren }): JSX.Element {
  return (
    <p class="fault" role="alert">
      {children}
    </p>
  );
}

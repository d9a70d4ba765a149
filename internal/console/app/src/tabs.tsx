// The views of one sandbox. Each has an address of its own.
import type { VNode } from "preact";
import { may } from "./api";
import { at, place } from "./ui";

interface Tab {
  path: string;
  name: string;
  scope: string;
}

const all: readonly Tab[] = [
  { path: "", name: "Sleep and life", scope: "sandboxes:get" },
  { path: "files", name: "Files", scope: "sandboxes:control" },
  { path: "processes", name: "Processes", scope: "sandboxes:control" },
  { path: "terminal", name: "Terminal", scope: "sandboxes:control" },
  { path: "log", name: "Log", scope: "sandboxes:get" },
  { path: "ports", name: "Ports and previews", scope: "sandboxes:get" },
  { path: "environment", name: "Environment", scope: "sandboxes:get" },
];

/** The tab that the address names. */
export const tab = (): string => place.value.path[2] ?? "";

export function Tabs({ name }: { name: string }): VNode {
  return (
    <nav class="tabs" aria-label={`Views of ${name}`}>
      {all.filter((t) => may(t.scope)).map((t) => (
        <a key={t.path} href={at("sandboxes", name, ...(t.path ? [t.path] : []))} aria-current={tab() === t.path ? "page" : undefined}>{t.name}</a>
      ))}
    </nav>
  );
}

// One more view of a sandbox, by the tab that the address names.
import type { VNode } from "preact";
import { may, type Sandbox } from "./api";
import { EnvironmentView } from "./environment";
import { FilesView } from "./files";
import { LogsView } from "./logs";
import { PortsView } from "./ports";
import { ProcessesView } from "./processes";
import { tab } from "./tabs";
import { TerminalView } from "./terminal";
import { readOnly } from "./ui";

interface Props {
  name: string;
  sandbox: Sandbox;
  awake: boolean;
}

export function InsideView({ name, sandbox, awake }: Props): VNode {
  switch (tab()) {
    case "log":
      return <LogsView name={name} />;
    case "ports":
      return <PortsView name={name} sandbox={sandbox} awake={awake} />;
    case "environment":
      return <EnvironmentView name={name} sandbox={sandbox} />;
  }
  if (!may("sandboxes:control")) return <p class="empty card">What is inside a sandbox needs the scope sandboxes:control.</p>;
  switch (tab()) {
    case "files":
      return <FilesView name={name} awake={awake} />;
    case "processes":
      return <ProcessesView name={name} awake={awake} />;
    case "terminal":
      return readOnly.value ? <p class="empty card">A terminal changes things, and the page is read-only.</p> : <TerminalView name={name} awake={awake} />;
  }
  return <p class="empty card">There is no such view of a sandbox.</p>;
}

// The machines of a fleet, and how they come and go. Only operators of a platform with nodes
// of its own get them.
import { signal } from "@preact/signals";
import { call, caller, get, may, type Answer } from "./api";
import { text, type Outcome } from "./form";
import { bytes, count, moment, plural } from "./format";
import { records, Time } from "./records";

type Node = Answer<"Node">;

const list = "/platform/nodes";
const every = 5000; // ms between two questions
const megabyte = 1 << 20;

/** Whether there are nodes that the caller may see. */
export const fleet = signal(false);

/** Finds out whether there are nodes. Nobody else is told that there are none. */
export async function look(): Promise<void> {
  const who = caller.value;
  fleet.value = false;
  if (!may("admin")) return;
  try {
    await get<Node[]>(list);
    if (caller.value === who) fleet.value = true;
  } catch {
    // it is no fleet, or not for this caller; the page says which, to those who go there
  }
}

const path = (n: Node, ...more: string[]): string => [list, encodeURIComponent(n.id), ...more].join("/");

/** Asks for a change of state, and says the new one. */
const change = (verb: "cordon" | "uncordon", said: string) => async (n: Node) => {
  await call<Node>("POST", path(n, verb));
  return { said: `The node ${n.id} ${said}.` };
};

/** What was lost with a node, unless that is nothing. */
function losses(n: Node, gone: Answer<"RemovedNode">): Outcome["once"] {
  if (gone.total === 0) return undefined;
  const named = gone.lost.map((l) => `${l.kind === "volumeTemplate" ? "volume template" : l.kind} ${l.workspace}/${l.name}${l.older ? " (an older state is left)" : ""}`);
  const more = gone.total - gone.lost.length;
  return {
    label: "What is lost", value: [...named, ...(more > 0 ? [`${count(more)} more`] : [])].join(", "),
    hint: `The node ${n.id} is deleted. Owners of sandboxes read why in their events. The log of control names all of it.`,
  };
}

export const nodes = records<Node>({
  title: "Nodes",
  scope: "admin",
  path: () => list,
  every,
  id: (n) => n.id,
  words: (n) => `${n.id} ${n.state} ${n.url} ${n.version} ${n.driver}`,
  columns: [
    { name: "Node", show: (n) => <><b>{n.id}</b><div class="quiet">{n.url}</div></> },
    { name: "State", show: (n) => <State of={n} /> },
    { name: "Sandboxes", number: true, show: (n) => (n.present ? <>{count(n.sandboxes)}<div class="quiet">{count(n.awake)} awake</div></> : "") },
    { name: "Reserved", number: true, show: (n) => (n.present ? <>{bytes(n.reserved * megabyte)}<div class="quiet">of {bytes(n.memory * megabyte)}</div></> : "") },
    { name: "Heard of", wide: true, show: (n) => (n.present ? <Time at={n.renewedAt} /> : "") },
    { name: "Version", wide: true, show: (n) => n.version },
  ],
  create: {
    label: "Add a node",
    scope: "admin",
    form: () => ({
      title: "Add a node",
      about: "You get a command, and run it on the new machine. It has a token, which is a secret.",
      submit: "Make a token",
      fields: [{ kind: "text", id: "ttl", label: "Good for", value: "1h", example: "1h" }],
      run: async (typed) => {
        const t = await call<Answer<"NodeToken">>("POST", list + "/tokens", { ttl: text(typed, "ttl") });
        return {
          said: "The token is made.",
          once: {
            label: "Command for the new machine", value: `dozed node --control ${t.control} --join ${t.token}`,
            hint: `Machines join with it until ${moment(t.expiresAt)}. Add --node-listen with the address of the machine, and the --remote settings of the others. It is shown this once.`,
          },
        };
      },
    }),
  },
  acts: [
    { label: "Cordon", scope: "admin", when: (n) => n.state === "ready", run: change("cordon", "takes no new sandboxes") },
    { label: "Uncordon", scope: "admin", when: (n) => n.state === "cordoned" || n.state === "draining", run: change("uncordon", "takes new sandboxes again") },
    {
      label: "Drain",
      scope: "admin",
      when: (n) => n.present,
      form: (n) => ({
        title: `Drain the node ${n.id}?`,
        about: "It takes no new sandboxes, and those that it has move to other nodes with memory and processes. Requests to a sandbox wait while it moves.",
        submit: "Drain it",
        run: async () => {
          const d = await call<Answer<"Drained">>("POST", path(n, "drain"));
          if (d.stayed > 0) throw new Error(`${plural(d.moved, "sandbox", "sandboxes")} moved, and ${count(d.stayed)} could not. Look at the log of control, and drain the node again.`);
          return { said: `The node ${n.id} is drained: ${plural(d.moved, "sandbox", "sandboxes")} moved.` };
        },
      }),
    },
    {
      label: "Delete",
      scope: "admin",
      danger: true,
      when: (n) => !n.present,
      form: (n) => ({
        title: `Delete the node ${n.id}?`,
        about: "It has to be stopped. If it alone has something, the error names that, and the node stays.",
        submit: "Delete it",
        danger: true,
        fields: [{
          kind: "yes", id: "force", label: "It was destroyed: lose what it alone had",
          hint: "Sandboxes that the bucket has go to other nodes first. Sandboxes and snapshots that it does not have fail. Such volumes and images are deleted.",
        }],
        run: async (typed) => {
          const gone = await call<Answer<"RemovedNode">>("DELETE", path(n) + (typed.has("force") ? "?force=true" : ""));
          return { said: `The node ${n.id} is deleted.`, once: losses(n, gone) };
        },
      }),
    },
  ],
  empty: "No node has joined yet.",
});

function State({ of: n }: { of: Node }) {
  if (n.state === "lost") return <span class="bad">lost</span>;
  if (!n.present) return <span class="bad">{n.state}, away</span>;
  return <span class={n.state === "ready" ? "good" : ""}>{n.state}</span>;
}

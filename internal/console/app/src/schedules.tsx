// Schedules of all sandboxes, and what came of them.
import { call, type Answer } from "./api";
import { pairs, text } from "./form";
import { deletion, records, Status, Time } from "./records";
import { at } from "./ui";

const every = 3000;

/** In the list of all sandboxes, each says of which one it is. */
type Schedule = Answer<"Schedule"> & { sandbox: string };

const pathOf = (sandbox: string): string => `/sandboxes/${encodeURIComponent(sandbox)}/schedules`;

export const schedules = records<Schedule>({
  title: "Schedules",
  about: "A schedule starts a process in its sandbox. It wakes the sandbox for that.",
  scope: "sandboxes:list",
  path: () => "/schedules",
  paged: true,
  every,
  id: (s) => `${s.sandbox}/${s.id}`,
  words: () => "",
  columns: [
    { name: "Name", show: (s) => <b>{s.id}</b> },
    { name: "Sandbox", show: (s) => <a href={at("sandboxes", s.sandbox)}>{s.sandbox}</a> },
    { name: "When", show: (s) => <>{s.type === "cron" ? "" : s.type + " "}<code>{s.value}</code>{s.type === "cron" && <span class="quiet"> UTC</span>}</> },
    { name: "Command", wide: true, show: (s) => <code>{s.input.command}</code> },
    { name: "Created", wide: true, show: (s) => <Time at={s.createdAt} /> },
  ],
  create: {
    label: "Make a schedule",
    scope: "sandboxes:update",
    form: () => ({
      title: "Make a schedule",
      about: "At each of its times, the platform wakes the sandbox and starts the command in it.",
      submit: "Make it",
      fields: [
        { kind: "text", id: "sandbox", label: "Sandbox" },
        { kind: "text", id: "id", label: "Name of the schedule", example: "nightly" },
        { kind: "choice", id: "type", label: "Kind", options: [["cron", "Again and again, as in crontab"], ["at", "Once, at a time"], ["sleep", "Once, after a while"]], value: "cron" },
        { kind: "text", id: "value", label: "When", example: "0 3 * * *", hint: "Five fields as in crontab, in UTC. Once: a time such as 2030-01-31T03:00:00Z. After a while: a duration such as 90m." },
        { kind: "text", id: "command", label: "Command", example: "make backup" },
        { kind: "lines", id: "env", label: "Variables", optional: true, secret: true, hint: "One NAME=value in each line. Answers of the platform mask the values." },
      ],
      run: async (typed) => {
        const sandbox = text(typed, "sandbox");
        const env = pairs(typed, "env");
        const made = await call<Schedule>("POST", pathOf(sandbox), { id: text(typed, "id"), type: text(typed, "type"), value: text(typed, "value"), input: { command: text(typed, "command"), ...(Object.keys(env).length > 0 && { env }) } });
        return { said: `The schedule ${made.id} of ${sandbox} is made.` };
      },
    }),
  },
  acts: [
    deletion<Schedule>("sandboxes:update", (s) => ({ noun: "schedule", name: s.id, path: `${pathOf(s.sandbox)}/${encodeURIComponent(s.id)}`, about: `${s.sandbox} stays as it is.` })),
  ],
  empty: "There are no schedules.",
});

type Execution = Answer<"Execution">;

export const executions = records<Execution>({
  title: "Runs",
  about: "A run says whether the sandbox took the process, not how the process ended.",
  scope: "sandboxes:list",
  path: () => "/schedule-executions",
  paged: true,
  every,
  id: (x) => `${x.sandbox}/${x.id}`,
  words: () => "",
  columns: [
    { name: "When", show: (x) => <Time at={x.executedAt} /> },
    { name: "Schedule", show: (x) => x.scheduleId },
    { name: "Sandbox", show: (x) => <a href={at("sandboxes", x.sandbox)}>{x.sandbox}</a> },
    { name: "Outcome", show: (x) => <><Status is={x.status} />{x.error && <div class="quiet">{x.error}</div>}</> },
    { name: "Process", wide: true, show: (x) => <code>{x.processName}</code> },
  ],
  empty: "No schedule ran yet.",
});

// Who may do what in a workspace: members, keys, service accounts, secrets, quotas.
import { useEffect, useState } from "preact/hooks";
import type { VNode } from "preact";
import { call, caller, get, may, type Answer } from "./api";
import { lines, several, text, type Field, type Form } from "./form";
import { bytes, count } from "./format";
import { deletion, records, Time } from "./records";
import { at, now } from "./ui";

type User = Answer<"User">;

const roles = [
  ["member", "Member: uses what the workspace has"],
  ["admin", "Admin: also manages images, members, secrets and gateways"],
] as const;

const userPath = (who: string): string => "/users/" + encodeURIComponent(who);

export const members = records<User>({
  title: "Members",
  scope: "workspaces:get",
  path: () => "/users",
  id: (u) => u.sub,
  called: (u) => u.email || u.sub,
  words: (u) => `${u.sub} ${u.email} ${u.given_name ?? ""} ${u.family_name ?? ""} ${u.role ?? ""}`,
  columns: [
    { name: "Who", show: (u) => <><b>{[u.given_name, u.family_name].filter(Boolean).join(" ") || u.sub}</b>{u.sub === caller.value?.sub && <span class="quiet"> (you)</span>}</> },
    { name: "Address", show: (u) => u.email },
    { name: "Role", show: (u) => u.role ?? "" },
  ],
  acts: [
    {
      label: "Change the role",
      scope: "workspaces:update",
      form: (u) => ({
        title: `Change the role of ${u.email || u.sub}`,
        submit: "Change it",
        fields: [{ kind: "choice", id: "role", label: "Role", options: roles, value: u.role }],
        run: async (typed) => {
          const changed = await call<User>("PUT", userPath(u.sub || u.email), { role: text(typed, "role") });
          return { said: `${u.email || u.sub} is ${changed.role === "admin" ? "an admin" : "a member"} now.` };
        },
      }),
    },
    {
      label: "Remove",
      scope: "workspaces:remove",
      danger: true,
      form: (u) => ({
        title: `Remove ${u.email || u.sub} from the workspace?`,
        about: "Open requests of this member end. What the member made stays.",
        submit: "Remove",
        danger: true,
        run: async () => {
          await call("DELETE", userPath(u.sub || u.email));
          return { said: `${u.email || u.sub} is removed.` };
        },
      }),
    },
  ],
  empty: "The workspace has no members.",
});

type Invitation = Answer<"Invitation">;

export const invitations = records<Invitation>({
  title: "Open invitations",
  scope: "invitations:list",
  path: () => "/invitations",
  id: (i) => i.email,
  words: (i) => `${i.email} ${i.role} ${i.invitedBy}`,
  columns: [
    { name: "Address", show: (i) => i.email },
    { name: "Role", show: (i) => i.role },
    { name: "Invited by", wide: true, show: (i) => i.invitedBy },
    { name: "Invited", wide: true, show: (i) => <Time at={i.createdAt} /> },
    { name: "Ends", show: (i) => <Ends at={i.expiresAt} /> },
  ],
  create: {
    label: "Invite",
    scope: "workspaces:invite",
    form: () => ({
      title: "Invite somebody",
      about: "The platform sends no mail. You get a token, and hand it over. Another invitation of the same address voids the old one.",
      submit: "Invite",
      fields: [
        { kind: "text", id: "email", label: "Mail address", pattern: ".+@.+", example: "ann@example.com" },
        { kind: "choice", id: "role", label: "Role", options: roles, value: "member" },
      ],
      run: async (typed) => {
        const made = await call<Invitation>("POST", "/users", { email: text(typed, "email"), role: text(typed, "role") });
        return {
          said: `${made.email} is invited.`,
          once: made.token ? { label: "Token of the invitation", value: made.token, hint: `Give this token to ${made.email}. It is shown this once, and is good for a week.` } : undefined,
        };
      },
    }),
  },
  acts: [
    {
      label: "Withdraw",
      scope: "workspaces:remove",
      danger: true,
      form: (i) => ({
        title: `Withdraw the invitation of ${i.email}?`,
        submit: "Withdraw it",
        danger: true,
        run: async () => {
          await call("DELETE", userPath(i.email));
          return { said: "The invitation is withdrawn." };
        },
      }),
    },
  ],
  empty: "No invitation is open.",
});

/** The rights that a key can have: those of what a platform has. */
const rights: readonly string[] = [
  "admin",
  ...["control", "create", "delete", "get", "list", "update"].map((a) => "sandboxes:" + a),
  ...["create", "delete", "get", "list"].map((a) => "volumes:" + a),
  ...["create", "delete", "get", "list", "upsert"].map((a) => "volumeTemplates:" + a),
  ...["create", "delete", "get", "list", "update"].map((a) => "customdomains:" + a),
  ...["create", "delete", "get", "list", "update"].map((a) => "policies:" + a),
  ...["accept", "create", "decline", "delete", "get", "invite", "leave", "list", "remove", "update"].map((a) => "workspaces:" + a),
  "apiKey:list", "apiKey:write", "configurations:list", "invitations:list", "locations:list", "sandboxhub:list",
];

const looks: readonly string[] = ["sandboxes:list", "sandboxes:get"];

/** What a form asks about rights. */
const rightsAsked = (whole: string): Field[] => [
  {
    kind: "choice", id: "rights", label: "Rights",
    options: [...(looks.every(may) ? [["looks", "See sandboxes, and nothing else"] as const] : []), ["all", whole], ["some", "Some, which you choose"]],
  },
  { kind: "several", id: "scopes", label: "Rights of it", options: rights.filter(may), value: looks, when: (typed) => typed.get("rights") === "some" },
];

function rightsOf(typed: FormData): readonly string[] | undefined {
  switch (text(typed, "rights")) {
    case "all":
      return undefined;
    case "some": {
      const all = several(typed, "scopes");
      if (all.length === 0) throw new Error("Choose at least one right.");
      return all;
    }
    default:
      return looks;
  }
}

function Rights({ of: all }: { of: readonly string[] }): VNode {
  if (all.includes("admin")) return <>all that its owner may</>;
  return <span title={all.join(", ")}>{all.slice(0, 3).join(", ")}{all.length > 3 && ` and ${all.length - 3} more`}</span>;
}

type Key = Answer<"APIKey">;

const seconds: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };

/** When a key ends, or nothing if it does not by itself. */
function endOf(k: Key): string | undefined {
  const m = /^(\d+)([smhdw])$/.exec(k.expires_in ?? "");
  if (!m || !k.createdAt) return undefined;
  return new Date(Date.parse(k.createdAt) + Number(m[1]) * 1000 * seconds[m[2]!]!).toISOString();
}

function Ends({ at: when }: { at: string | undefined }): VNode {
  if (!when) return <span class="quiet">never</span>;
  const left = (Date.parse(when) - now.value) / 1000;
  if (left <= 0) return <span class="bad">it ended</span>;
  const [unit, name] = left < 3600 ? [60, "min"] : left < 86400 ? [3600, "h"] : [86400, "d"];
  return <time dateTime={when} title={new Date(when).toLocaleString("en-GB")}>in {Math.ceil(left / unit)} {name}</time>;
}

/** A form that makes a key, and shows it once. */
const makesKey = (path: string, title: string, whole: string): Form => ({
  title,
  submit: "Make it",
  fields: [
    { kind: "text", id: "name", label: "Name", example: "ci" },
    { kind: "choice", id: "life", label: "It ends", value: "30d", options: [["1h", "after an hour"], ["1d", "after a day"], ["7d", "after a week"], ["30d", "after 30 days"], ["365d", "after a year"], ["", "when somebody deletes it"]] },
    ...rightsAsked(whole),
  ],
  run: async (typed) => {
    const made = await call<Key>("POST", path, { name: text(typed, "name"), expires_in: text(typed, "life") || undefined, scopes: rightsOf(typed) });
    return {
      said: `The key ${made.name} is made.`,
      once: { label: "The key", value: made.apiKey ?? "", hint: "Copy the key now. The platform shows it this once, and keeps only what proves it." },
    };
  },
});

const keysOf = (path: string, title: string, scopes: { list: string; write: string }, form: () => Form, about: string) =>
  records<Key>({
    title,
    about,
    scope: scopes.list,
    path: () => path,
    id: (k) => k.id,
    called: (k) => k.name || k.id,
    words: (k) => `${k.id} ${k.name} ${k.sub} ${k.scopes.join(" ")}`,
    columns: [
      { name: "Name", show: (k) => <><b>{k.name || "without a name"}</b> <span class="quiet wide-only">{k.id}</span></> },
      { name: "Owner", wide: true, show: (k) => k.sub },
      { name: "Rights", show: (k) => <Rights of={k.scopes} /> },
      { name: "Last used", show: (k) => <Time at={k.lastUsedAt} none="never" /> },
      { name: "Created", wide: true, show: (k) => <Time at={k.createdAt} /> },
      { name: "Ends", show: (k) => <Ends at={endOf(k)} /> },
    ],
    create: { label: "Make a key", scope: scopes.write, form },
    acts: [
      deletion<Key>(scopes.write, (k) => ({ noun: "key", name: k.name || k.id, path: `${path}/${encodeURIComponent(k.id)}`, about: "Whoever uses it is refused at once, and open requests end." })),
    ],
    empty: "There are no keys.",
  });

export const keys = keysOf(
  "/api_keys", "Keys", { list: "apiKey:list", write: "apiKey:write" },
  () => makesKey("/api_keys", "Make a key", "All that you may do"),
  "An admin sees the keys of all members. The others see their own.",
);

type Account = Answer<"ServiceAccount">;

const accountPath = (id: string): string => "/service_accounts/" + encodeURIComponent(id);

export const accounts = records<Account>({
  title: "Service accounts",
  scope: "admin",
  path: () => "/service_accounts",
  id: (a) => a.client_id,
  called: (a) => a.name,
  words: (a) => `${a.name} ${a.description ?? ""} ${a.client_id}`,
  columns: [
    { name: "Name", show: (a) => <a href={at("workspace", "accounts", a.client_id)}>{a.name}</a> },
    { name: "For", wide: true, show: (a) => a.description ?? "" },
    { name: "Client id", wide: true, show: (a) => <code>{a.client_id}</code> },
    { name: "Rights", show: (a) => <Rights of={a.scopes ?? []} /> },
    { name: "Created", wide: true, show: (a) => <Time at={a.created_at} /> },
  ],
  create: {
    label: "Make an account",
    scope: "admin",
    form: () => ({
      title: "Make a service account",
      about: "A service account is for a program. It has keys, and gets tokens with its id and its secret.",
      submit: "Make it",
      fields: [
        { kind: "text", id: "name", label: "Name", example: "deploys" },
        { kind: "text", id: "description", label: "What it is for", optional: true },
        ...rightsAsked("All that you may do"),
      ],
      run: async (typed) => {
        const made = await call<Account>("POST", "/service_accounts", { name: text(typed, "name"), description: text(typed, "description") || undefined, scopes: rightsOf(typed) });
        return {
          said: `The account ${made.name} is made.`,
          once: { label: "Its secret", value: made.client_secret ?? "", hint: `The client id is ${made.client_id}. Copy the secret now: it is shown this once.` },
        };
      },
    }),
  },
  acts: [
    deletion<Account>("admin", (a) => ({ noun: "account", name: a.name, path: accountPath(a.client_id), about: "All of its keys and tokens end with it.", confirm: true })),
  ],
  empty: "There are no service accounts.",
});

export function AccountView({ id }: { id: string }): VNode {
  const [name, setName] = useState(id);
  useEffect(() => {
    const stop = new AbortController();
    get<Account[]>("/service_accounts", stop.signal).then((all) => setName(all.find((a) => a.client_id === id)?.name ?? id), () => undefined); // the table says what is wrong
    return () => stop.abort();
  }, [id]);
  const path = accountPath(id) + "/api_keys";
  return (
    <>
      <p class="crumb"><a href={at("workspace", "accounts")}>Service accounts</a></p>
      <h1>{name}</h1>
      {keysOf(path, "Keys of the account", { list: "admin", write: "admin" }, () => makesKey(path, "Make a key for the account", "All that you may do"), "A key has at most the rights of its account.").view()}
    </>
  );
}

type Secret = Answer<"Secret">;

const secretPath = (name: string): string => "/secrets/" + encodeURIComponent(name);
const valueAsked: Field = { kind: "lines", id: "value", label: "Value", secret: true, hint: "Nobody can read it here again. You can replace it." };

/** Changes the keys of a secret. The others keep their values: the platform takes its own masks back. */
async function change(name: string, how: (data: Record<string, string>) => Record<string, string>): Promise<void> {
  const now = await get<Secret>(secretPath(name)); // somebody else may have changed it
  await call("PUT", secretPath(name), { metadata: { name }, data: how(now.data) });
}

export const secrets = records<Secret>({
  title: "Secrets",
  scope: "admin",
  path: () => "/secrets",
  id: (s) => s.metadata.name,
  words: (s) => `${s.metadata.name} ${Object.keys(s.data).join(" ")}`,
  columns: [
    { name: "Name", show: (s) => <b>{s.metadata.name}</b> },
    { name: "Keys", show: (s) => Object.keys(s.data).map((k) => <div key={k}><code>{k}</code></div>) },
    { name: "Changed", show: (s) => <Time at={s.metadata.updatedAt} /> },
    { name: "By", wide: true, show: (s) => s.metadata.updatedBy ?? "" },
  ],
  create: {
    label: "Make a secret",
    scope: "admin",
    form: () => ({
      title: "Make a secret",
      about: "Variables of sandboxes, and rules of the network, refer to a secret by its name and key.",
      submit: "Make it",
      fields: [{ kind: "text", id: "name", label: "Name", example: "registry" }, { kind: "text", id: "key", label: "Key", example: "password" }, valueAsked],
      run: async (typed) => {
        const name = text(typed, "name");
        await call("POST", "/secrets", { metadata: { name }, data: { [text(typed, "key")]: lines(typed, "value") } });
        return { said: `The secret ${name} is made.` };
      },
    }),
  },
  acts: [
    {
      label: "Set a key",
      scope: "admin",
      form: (s) => ({
        title: `Set a key of ${s.metadata.name}`,
        about: "A key that is there gets the new value. Machines that start from now on see it.",
        submit: "Set it",
        fields: [{ kind: "text", id: "key", label: "Key", value: Object.keys(s.data)[0] }, valueAsked],
        run: async (typed) => {
          const key = text(typed, "key");
          await change(s.metadata.name, (data) => ({ ...data, [key]: lines(typed, "value") }));
          return { said: `${key} of ${s.metadata.name} has a new value.` };
        },
      }),
    },
    {
      label: "Remove a key",
      scope: "admin",
      danger: true,
      when: (s) => Object.keys(s.data).length > 1,
      form: (s) => ({
        title: `Remove a key of ${s.metadata.name}`,
        submit: "Remove it",
        danger: true,
        fields: [{ kind: "choice", id: "key", label: "Key", options: Object.keys(s.data).map((k) => [k, k] as const) }],
        run: async (typed) => {
          const key = text(typed, "key");
          await change(s.metadata.name, (data) => Object.fromEntries(Object.entries(data).filter(([k]) => k !== key)));
          return { said: `${key} of ${s.metadata.name} is removed.` };
        },
      }),
    },
    deletion<Secret>("admin", (s) => ({ noun: "secret", name: s.metadata.name, path: secretPath(s.metadata.name), about: "Sandboxes that need it cannot get a new machine then.", confirm: true })),
  ],
  empty: "There are no secrets.",
});

type Quota = Answer<"QuotaStatus">;

/** An amount of a quota, as people read it. */
const amount = (q: Quota, n: number): string => (q.unit === "MiB" ? bytes(n * 2 ** 20) : count(n));

export const quotas = records<Quota>({
  title: "Quotas",
  scope: "workspaces:get",
  path: () => "/quotas",
  every: 5000,
  id: (q) => q.name,
  words: (q) => `${q.name} ${q.description}`,
  columns: [
    { name: "Quota", show: (q) => <><b>{q.name}</b> <span class="quiet">{q.description}</span></> },
    { name: "Used", number: true, show: (q) => amount(q, q.used) },
    { name: "Of", number: true, show: (q) => <>{amount(q, q.limit)}{q.limit !== q.default && <span class="quiet"> (default {amount(q, q.default)})</span>}</> },
    { name: "Share", show: (q) => <meter min={0} max={Math.max(1, q.limit)} high={0.8 * Math.max(1, q.limit)} value={q.used} aria-label={`Use of ${q.name}`} /> },
  ],
  empty: "The platform has no quotas.",
});

// Images: those of the workspace, and those of the platform.
import { useEffect, useState } from "preact/hooks";
import type { ComponentChildren, VNode } from "preact";
import { call, get, may, type Answer } from "./api";
import { text, type Outcome } from "./form";
import { bytes } from "./format";
import { rows } from "./live";
import { deletion, records, Status, Time, type Act } from "./records";
import { at, Fault, reason } from "./ui";

type Config = Answer<"ImageConfig">;

type Tag = Answer<"ImageTag">;

type Image = Answer<"Image">;

type HubImage = Answer<"HubImage">;

const pathOf = (...parts: string[]): string => "/images/" + parts.map(encodeURIComponent).join("/");

/** The sandboxes that a tag is the image of, by what the page knows of all sandboxes. */
function users(name: string, tag?: string): string[] {
  return rows.value
    .filter((r) => {
      const [image, version = "latest"] = r.image.replace(/^sandbox\//, "").split(":");
      return image === name && (tag === undefined || tag === version);
    })
    .map((r) => r.name);
}

const inUse = (all: string[]): string => (all.length === 0 ? "No sandbox has it now. Files of images stay on the host." : `It is the image of ${all.slice(0, 5).join(", ")}${all.length > 5 ? ` and ${all.length - 5} more` : ""}. The platform refuses to delete it before them.`);

function Users({ name, tag }: { name: string; tag?: string }): VNode {
  const all = users(name, tag);
  if (all.length === 0) return <span class="quiet">none</span>;
  return <>{all.slice(0, 3).map((s, i) => <>{i > 0 && ", "}<a href={at("sandboxes", s)}>{s}</a></>)}{all.length > 3 && ` and ${all.length - 3} more`}</>;
}

export const images = records<Image>({
  title: "Of the workspace",
  scope: "admin",
  path: () => "/images",
  every: 10_000,
  id: (i) => i.metadata.name,
  words: (i) => `${i.metadata.name} ${i.metadata.displayName ?? ""} ${i.spec.tags.map((t) => t.name).join(" ")}`,
  columns: [
    {
      name: "Name",
      show: (i) => (
        <>
          <a href={at("images", i.metadata.resourceType, i.metadata.name)}>{i.metadata.name}</a>
          {i.metadata.sourceWorkspace && <span class="quiet"> of {i.metadata.sourceWorkspace}</span>}
        </>
      ),
    },
    { name: "Status", show: (i) => <Status is={i.metadata.status} /> },
    { name: "Tags", show: (i) => i.spec.tags.slice(0, 4).map((t) => t.name).join(", ") + (i.spec.tags.length > 4 ? ` and ${i.spec.tags.length - 4} more` : "") },
    { name: "Sandboxes", wide: true, show: (i) => <Users name={i.metadata.name} /> },
    { name: "Size", number: true, show: (i) => bytes(i.spec.size) },
    { name: "Last used", wide: true, show: (i) => <Time at={i.metadata.lastDeployedAt} none="never" /> },
    { name: "Created", wide: true, show: (i) => <Time at={i.metadata.createdAt} /> },
  ],
  create: {
    label: "Import",
    scope: "admin",
    form: () => ({
      title: "Import an image of a registry",
      about: "The platform pulls what the reference means now, and keeps it under a name of the workspace. It takes as long as the pull.",
      submit: "Import it",
      fields: [
        { kind: "text", id: "image", label: "Reference", example: "registry.example.com/team/app:2", hint: "A secret of the workspace with the key .dockerconfigjson opens private registries." },
        { kind: "text", id: "name", label: "Name in the workspace", example: "app:2", hint: "Without a tag, it is latest. A tag that is there moves." },
      ],
      run: async (typed): Promise<Outcome> => {
        const made = await call<{ message: string; name: string; resourceType: string }>("POST", "/images", { name: text(typed, "name"), image: text(typed, "image") });
        return { said: `${made.name} is imported.`, go: at("images", made.resourceType, made.name) };
      },
    }),
  },
  acts: [
    {
      ...deletion<Image>("admin", (i) => ({ noun: "image", name: i.metadata.name, path: pathOf(i.metadata.resourceType, i.metadata.name), about: inUse(users(i.metadata.name)) })),
      when: (i) => !i.metadata.sourceWorkspace,
    },
  ],
  empty: "The workspace has no image of its own. Import one, or build one of a Dockerfile.",
});

export const catalogue = records<HubImage>({
  title: "Of the platform",
  about: "A sandbox can have each of these by its name. The host builds most of them when the first sandbox wants one.",
  scope: "sandboxhub:list",
  path: () => "/sandbox/hub",
  pick: (answer) => (answer as HubImage[]).filter((i) => !i.hidden),
  id: (i) => i.name,
  words: (i) => `${i.name} ${i.displayName} ${i.description}`,
  columns: [
    { name: "Name", show: (i) => <code>{i.image || i.name}</code> },
    { name: "What is in it", show: (i) => i.description },
    { name: "Memory", number: true, wide: true, show: (i) => (i.memory ? bytes(i.memory * 2 ** 20) : "–") },
    { name: "Ports", wide: true, show: (i) => (i.ports ?? []).map((p) => p.target).join(", ") },
  ],
  empty: "The platform has no images of its own.",
});

const config = (c: Config): [name: string, value: ComponentChildren][] =>
  (
    [
      ["Entrypoint", c.entrypoint?.join(" ")],
      ["Command", c.cmd?.join(" ")],
      ["User", c.user],
      ["Directory", c.workDir],
      ["Ports", c.ports?.join(", ")],
      ["Signal to end", c.stopSignal],
      ["Health check", c.health?.test?.join(" ")],
      ["Variables", c.env?.map((e) => <div key={e}><code>{e}</code></div>)],
      ["Labels", c.labels && Object.entries(c.labels).map(([k, v]) => <div key={k}><code>{k}={v}</code></div>)],
    ] as [string, ComponentChildren][]
  ).filter(([, v]) => v !== undefined && v !== "" && !(Array.isArray(v) && v.length === 0));

function Configuration({ of: tag }: { of: Tag }): VNode {
  const all = tag.config ? config(tag.config) : [];
  if (all.length === 0) return <span class="quiet">none</span>;
  return (
    <details>
      <summary>Show<span class="unseen"> that of {tag.name}</span></summary>
      <dl class="config">{all.map(([k, v]) => <div key={k}><dt>{k}</dt><dd>{typeof v === "string" ? <code>{v}</code> : v}</dd></div>)}</dl>
    </details>
  );
}

const tags = (type: string, name: string, mine: boolean) => {
  const acts: Act<Tag>[] = [
    {
      label: "Delete",
      scope: "admin",
      danger: true,
      when: () => mine,
      form: (t) => ({
        title: `Delete the tag ${name}:${t.name}?`,
        about: inUse(users(name, t.name)),
        submit: "Delete it",
        danger: true,
        run: async () => {
          const was = await call<Image>("DELETE", pathOf(type, name, "tags", t.name));
          const last = was.spec.tags.every((one) => one.name === t.name); // the image is gone with it
          return { said: `The tag ${name}:${t.name} is deleted.`, go: last ? at("images") : undefined };
        },
      }),
    },
  ];
  return records<Tag>({
    title: "Tags",
    scope: "admin",
    path: () => pathOf(type, name),
    pick: (answer) => (answer as Image).spec.tags,
    every: 10_000,
    id: (t) => t.name,
    words: (t) => t.name,
    columns: [
      { name: "Tag", show: (t) => <><b>{t.name}</b>{t.build && <span class="quiet"> of a build for a sandbox</span>}</> },
      { name: "Image", wide: true, show: (t) => <div><code>{t.image}</code></div> },
      { name: "Sandboxes", show: (t) => <Users name={name} tag={t.name} /> },
      { name: "Size", number: true, show: (t) => bytes(t.size) },
      { name: "Moved", wide: true, show: (t) => <Time at={t.updatedAt} /> },
      { name: "Configuration", show: (t) => <Configuration of={t} /> },
    ],
    acts,
    empty: "It has no tag: its build has not ended, or failed.",
  });
};

type Share = Answer<"ImageShare">;

const shares = (type: string, name: string) =>
  records<Share>({
    title: "Shared with",
    about: "These workspaces may use the image, and cannot change it.",
    scope: "admin",
    path: () => pathOf(type, name, "share"),
    id: (s) => s.workspace,
    words: (s) => s.workspace,
    columns: [
      { name: "Workspace", show: (s) => s.workspace },
      { name: "Status", show: (s) => <Status is={s.status} /> },
    ],
    create: {
      label: "Share",
      scope: "admin",
      form: () => ({
        title: `Share ${name}`,
        about: "Sandboxes of the other workspace can have it then.",
        submit: "Share it",
        fields: [{ kind: "text", id: "workspace", label: "Workspace" }],
        run: async (typed) => {
          const to = text(typed, "workspace");
          await call("POST", pathOf(type, name, "share"), { targetWorkspace: to });
          return { said: `${name} is shared with ${to}.` };
        },
      }),
    },
    acts: [
      {
        label: "End",
        scope: "admin",
        danger: true,
        form: (s) => ({
          title: `Share ${name} with ${s.workspace} no more?`,
          about: "Sandboxes that run on it go on.",
          submit: "End it",
          danger: true,
          run: async () => {
            await call("DELETE", pathOf(type, name, "share", s.workspace));
            return { said: `${name} is shared with ${s.workspace} no more.` };
          },
        }),
      },
    ],
    empty: "It is not shared.",
  });

export function ImageView({ type, name }: { type: string; name: string }): VNode {
  const [image, setImage] = useState<Image | null>(null);
  const [fault, setFault] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    get<Image>(pathOf(type, name), stop.signal).then(setImage, (e: unknown) => stop.signal.aborted || setFault(reason(e)));
    return () => stop.abort();
  }, [type, name]);
  const crumb = <p class="crumb"><a href={at("images")}>Images</a></p>;
  if (!image) return <>{crumb}<h1>{name}</h1>{fault ? <Fault>{fault}</Fault> : <p class="quiet" role="status">Looking…</p>}</>;
  const m = image.metadata;
  const newest = image.spec.tags.toSorted((a, b) => Date.parse(b.updatedAt ?? "") - Date.parse(a.updatedAt ?? ""))[0];
  return (
    <>
      {crumb}
      <div class="bar subject">
        <h1>{name}</h1>
        <span class="state big"><Status is={m.status} /></span>
      </div>
      <dl class="facts-grid card">
        <div><dt>Size</dt><dd>{bytes(image.spec.size)}</dd></div>
        <div><dt>Created</dt><dd><Time at={m.createdAt} /></dd></div>
        <div><dt>Last used</dt><dd><Time at={m.lastDeployedAt} none="never" /></dd></div>
        {m.sourceWorkspace && <div><dt>Shared by</dt><dd>{m.sourceWorkspace}</dd></div>}
        {newest && <div><dt>Name for a sandbox</dt><dd><code>{m.resourceType}/{name}:{newest.name}</code></dd></div>}
      </dl>
      {tags(type, name, !m.sourceWorkspace).view()}
      {!m.sourceWorkspace && may("admin") && shares(type, name).view()}
    </>
  );
}

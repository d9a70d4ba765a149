// What outlives sandboxes: volumes, volume templates, drives.
import type { VNode } from "preact";
import { call, fetched, Refusal, type Answer } from "./api";
import { file, text, type Progress } from "./form";
import { bytes } from "./format";
import { deletion, records, Status, Time } from "./records";
import { put } from "./transfer";
import { at } from "./ui";

const megabytes = (n: number | undefined): string => (n ? bytes(n * 2 ** 20) : "–");

type Volume = Answer<"Volume">;

const volumePath = (name: string): string => "/volumes/" + encodeURIComponent(name);

export const volumes = records<Volume>({
  title: "Volumes",
  scope: "volumes:list",
  path: () => "/volumes",
  paged: true,
  id: (v) => v.metadata.name,
  words: () => "",
  columns: [
    { name: "Name", show: (v) => <b>{v.metadata.name}</b> },
    { name: "Status", show: (v) => <Status is={v.status} /> },
    { name: "Attached to", show: (v) => <Attached to={v.state.attachedTo} /> },
    { name: "Size", number: true, show: (v) => megabytes(v.spec.size) },
    { name: "Template", wide: true, show: (v) => v.spec.template ?? "" },
    { name: "Created", wide: true, show: (v) => <Time at={v.metadata.createdAt} /> },
  ],
  create: {
    label: "Make a volume",
    scope: "volumes:create",
    form: () => ({
      title: "Make a volume",
      about: "On the host, a volume takes what is written. It can grow later, and never shrink.",
      submit: "Make it",
      fields: [
        { kind: "text", id: "name", label: "Name", example: "data" },
        { kind: "number", id: "size", label: "Size in MB", optional: true, least: 1, hint: "A volume with a template has the size of the template unless you ask for more." },
        { kind: "text", id: "template", label: "Template to begin with", optional: true, example: "seed:1" },
      ],
      run: async (typed) => {
        const name = text(typed, "name");
        await call("POST", "/volumes", { metadata: { name }, spec: { size: Number(text(typed, "size")) || undefined, template: text(typed, "template") || undefined } });
        return { said: `The volume ${name} is ready.` };
      },
    }),
  },
  acts: [
    {
      label: "Grow",
      scope: "volumes:create",
      form: (v) => ({
        title: `Make ${v.metadata.name} larger`,
        about: v.state.attachedTo ? "Its sandbox sees the new size with its next machine." : "The next sandbox sees the new size.",
        submit: "Make it larger",
        fields: [{ kind: "number", id: "size", label: "Size in MB", value: v.spec.size, least: v.spec.size }],
        run: async (typed) => {
          const now = await call<Volume>("GET", volumePath(v.metadata.name)); // its labels go back as they came
          const grown = await call<Volume>("PUT", volumePath(v.metadata.name), { metadata: now.metadata, spec: { ...now.spec, size: Number(text(typed, "size")) } });
          return { said: `${v.metadata.name} has ${megabytes(grown.spec.size)} now.` };
        },
      }),
    },
    {
      ...deletion<Volume>("volumes:delete", (v) => ({ noun: "volume", name: v.metadata.name, path: volumePath(v.metadata.name), about: "All files on it are lost.", confirm: true })),
      when: (v) => !v.state.attachedTo,
    },
  ],
  empty: "There are no volumes.",
});

function Attached({ to }: { to: string }): VNode {
  const name = to.replace(/^sandbox:/, "");
  return name ? <a href={at("sandboxes", name)}>{name}</a> : <span class="quiet">nothing</span>;
}

type Version = Answer<"VolumeTemplateVersion">;

type Template = Answer<"VolumeTemplate">;

const templatePath = (name: string): string => "/volume_templates/" + encodeURIComponent(name);

/** Makes a version of a template, and puts its files there. */
async function upload(method: string, path: string, body: unknown, archive: File, progress: Progress, stop: AbortSignal): Promise<string> {
  const r = await fetched(method, path + "?upload=true", body);
  const to = r.headers.get("X-Blaxel-Upload-Url");
  if (!to) throw new Refusal(0, "The platform named no place for the files.");
  const { version } = await put<{ version: string }>(to, archive, progress, stop);
  return version;
}

const archiveAsked = { kind: "file", id: "archive", label: "Archive", accept: ".tar,application/x-tar", hint: "A tar, not compressed. It has files and directories alone." } as const;

export const templates = records<Template>({
  title: "Volume templates",
  scope: "volumeTemplates:list",
  path: () => "/volume_templates",
  id: (t) => t.metadata.name,
  words: (t) => `${t.metadata.name} ${t.spec.description}`,
  columns: [
    { name: "Name", show: (t) => <a href={at("workspace", "templates", t.metadata.name)}>{t.metadata.name}</a> },
    { name: "Status", show: (t) => <Status is={t.state.status} /> },
    { name: "For", wide: true, show: (t) => t.spec.description },
    { name: "Versions", number: true, show: (t) => t.state.versionCount },
    { name: "Size", number: true, wide: true, show: (t) => megabytes(t.spec.defaultSize) },
    { name: "Uploaded", show: (t) => <Time at={t.state.lastVersionUploadedAt} none="never" /> },
  ],
  create: {
    label: "Make a template",
    scope: "volumeTemplates:create",
    form: () => ({
      title: "Make a volume template",
      about: "New volumes begin with its files.",
      submit: "Upload",
      fields: [
        { kind: "text", id: "name", label: "Name", example: "seed" },
        { kind: "text", id: "description", label: "What it is for", optional: true },
        { kind: "number", id: "size", label: "Size of its volumes in MB", value: 64, least: 1 },
        archiveAsked,
      ],
      run: async (typed, progress, stop) => {
        const name = text(typed, "name");
        const version = await upload("POST", "/volume_templates", { metadata: { name }, spec: { defaultSize: Number(text(typed, "size")), description: text(typed, "description") } }, file(typed, "archive"), progress, stop);
        return { said: `${name}:${version} is ready.` };
      },
    }),
  },
  acts: [
    {
      label: "Add a version",
      scope: "volumeTemplates:upsert",
      form: (t) => ({
        title: `Add a version of ${t.metadata.name}`,
        about: "Volumes that are there stay as they are. New ones begin with this version.",
        submit: "Upload",
        fields: [archiveAsked],
        run: async (typed, progress, stop) => {
          const version = await upload("PUT", templatePath(t.metadata.name), { metadata: t.metadata, spec: t.spec }, file(typed, "archive"), progress, stop);
          return { said: `${t.metadata.name}:${version} is ready.` };
        },
      }),
    },
    deletion<Template>("volumeTemplates:delete", (t) => ({ noun: "template", name: t.metadata.name, path: templatePath(t.metadata.name), about: "Its versions go with it. Volumes that were made of it stay.", confirm: true })),
  ],
  empty: "There are no volume templates.",
});

export function TemplateView({ name }: { name: string }): VNode {
  return (
    <>
      <p class="crumb"><a href={at("workspace", "templates")}>Volume templates</a></p>
      <h1>{name}</h1>
      {records<Version>({
        title: "Versions",
        scope: "volumeTemplates:get",
        path: () => templatePath(name),
        pick: (answer) => (answer as Template).versions,
        id: (v) => v.name,
        words: (v) => v.name,
        columns: [
          { name: "Version", show: (v) => <b>{v.name}</b> },
          { name: "Status", show: (v) => <Status is={v.status} /> },
          { name: "Files", number: true, show: (v) => bytes(v.contentSize) },
          { name: "Name for a volume", wide: true, show: (v) => <code>{name}:{v.name}</code> },
        ],
        acts: [deletion<Version>("volumeTemplates:delete", (v) => ({ noun: "version", name: `${name}:${v.name}`, path: `${templatePath(name)}/versions/${encodeURIComponent(v.name)}`, about: "Volumes that were made of it stay." }))],
        empty: "It has no version yet.",
      }).view()}
    </>
  );
}

type Permission = Answer<"DrivePermission">;

type Drive = Answer<"Drive">;

const drivePath = (name: string): string => "/drives/" + encodeURIComponent(name);

/** Who may use a drive, in words. */
function permission(p: Permission): string {
  const who = Object.entries(p.labels ?? {}).map(([k, v]) => `${k}=${v}`).join(", ");
  return `${who ? "sandboxes with " + who : "all sandboxes"} may ${p.mode === "read" ? "read" : "read and write"}${p.path && p.path !== "/" ? " below " + p.path : ""}`;
}

export const drives = records<Drive>({
  title: "Drives",
  scope: "volumes:list",
  path: () => "/drives",
  paged: true,
  id: (d) => d.metadata.name,
  words: () => "",
  columns: [
    { name: "Name", show: (d) => <b>{d.metadata.name}</b> },
    { name: "Status", show: (d) => <Status is={d.status} /> },
    { name: "Permissions", show: (d) => (d.spec.permissions?.length ? d.spec.permissions.map((p, i) => <div key={i}>{permission(p)}</div>) : "all sandboxes may read and write") },
    { name: "Bucket", wide: true, show: (d) => <code>{d.state.s3Url}</code> },
    { name: "Created", wide: true, show: (d) => <Time at={d.metadata.createdAt} /> },
  ],
  create: {
    label: "Make a drive",
    scope: "volumes:create",
    form: () => ({
      title: "Make a drive",
      about: "A drive is a directory in a bucket. Any number of sandboxes can share it.",
      submit: "Make it",
      fields: [{ kind: "text", id: "name", label: "Name", example: "data" }],
      run: async (typed) => {
        const name = text(typed, "name");
        await call("POST", "/drives", { metadata: { name }, spec: {} });
        return { said: `The drive ${name} is ready.` };
      },
    }),
  },
  acts: [
    deletion<Drive>("volumes:delete", (d) => ({ noun: "drive", name: d.metadata.name, path: drivePath(d.metadata.name), about: "All files on it are lost.", confirm: true })),
  ],
  empty: "There are no drives.",
});

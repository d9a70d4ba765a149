// The pages of the areas: the table that says what there is, in the order of the navigation.
import type { Area } from "./area";
import { audit, AuditTools } from "./audit";
import { BuildView, builds } from "./builds";
import { addresses, domains, gateways, policies, vpcs } from "./gateways";
import { catalogue, images, ImageView } from "./images";
import { fleet, nodes } from "./nodes";
import { accounts, AccountView, invitations, keys, members, quotas, secrets } from "./people";
import { executions, schedules } from "./schedules";
import { drives, templates, TemplateView, volumes } from "./storage";

export const areas: ReadonlyMap<string, Area> = new Map(Object.entries({
  images: {
    name: "Images",
    pages: [
      {
        path: ["images"], name: "Images", about: "What a sandbox begins with: its files, its variables and its own process.",
        parts: [images, catalogue],
        one: (type, name, more) => (type && name && more === undefined ? <ImageView key={name} type={type} name={name} /> : null),
      },
      {
        path: ["images", "builds"], name: "Builds", about: "Images out of Dockerfiles. The last 100 builds are on record, with their logs.",
        parts: [builds],
        one: (id, more) => (id && more === undefined ? <BuildView key={id} id={id} /> : null),
      },
    ],
  },
  workspace: {
    name: "Workspace",
    pages: [
      { path: ["workspace", "members"], name: "Members", about: "Who is in the workspace, and who is asked to come in.", parts: [members, invitations] },
      { path: ["workspace", "keys"], name: "Keys", about: "A key is a credential for programs. Give it no more rights than its program needs.", parts: [keys] },
      {
        path: ["workspace", "accounts"], name: "Service accounts", about: "Accounts of programs. They stay when the people who made them leave.", parts: [accounts],
        one: (id, more) => (id && more === undefined ? <AccountView key={id} id={id} /> : null),
      },
      { path: ["workspace", "secrets"], name: "Secrets", about: "Values that go to sandboxes and registries. The platform shows none of them.", parts: [secrets] },
      { path: ["workspace", "quotas"], name: "Quotas", about: "What the workspace may have, and what it has. An operator of the platform sets the limits.", parts: [quotas] },
      { path: ["workspace", "audit"], name: "Audit log", about: "Who changed what, and who was denied. The newest line is on top.", parts: [audit], tools: () => <AuditTools /> },
      { path: ["workspace", "schedules"], name: "Schedules", about: "What the platform starts in sandboxes by itself.", parts: [schedules, executions] },
      { path: ["workspace", "volumes"], name: "Volumes", about: "Disks that outlive the sandboxes that they are attached to.", parts: [volumes] },
      {
        path: ["workspace", "templates"], name: "Volume templates", about: "Files that new volumes begin with.", parts: [templates],
        one: (name, more) => (name && more === undefined ? <TemplateView key={name} name={name} /> : null),
      },
      { path: ["workspace", "drives"], name: "Drives", about: "Directories in a bucket that sandboxes share.", parts: [drives] },
      { path: ["workspace", "domains"], name: "Custom domains", about: "Names of your own for previews.", parts: [domains] },
      { path: ["workspace", "gateways"], name: "Gateways", about: "Addresses from which sandboxes leave, and networks between sandboxes.", parts: [vpcs, gateways, addresses] },
      { path: ["workspace", "policies"], name: "Policies", about: "Records that clients keep here. They change nothing on this platform.", parts: [policies] },
    ],
  },
  platform: {
    name: "Platform",
    here: () => fleet.value,
    pages: [
      { path: ["platform", "nodes"], name: "Nodes", about: "Machines that run the sandboxes. What a lost one had goes on on the others.", parts: [nodes] },
    ],
  },
} satisfies Record<string, Area>));

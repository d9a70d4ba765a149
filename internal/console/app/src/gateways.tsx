// How sandboxes leave to the world, and how the world reaches their previews: VPCs, egress
// gateways, dedicated addresses, custom domains. And the policies that clients keep here.
import { call, get, type Answer } from "./api";
import { text, type Form } from "./form";
import { deletion, records, Status, Time } from "./records";

type Resource = Answer<"NetworkResource">;

const vpcPath = (vpc: string): string => "/vpcs/" + encodeURIComponent(vpc);
const gatewaysPath = (vpc: string): string => vpcPath(vpc) + "/egressgateways";
const gatewayPath = (r: Resource, gateway = r.metadata.name): string => `${gatewaysPath(r.metadata.vpcName ?? "")}/${encodeURIComponent(gateway)}`;
const addressesPath = (r: Resource, gateway?: string): string => gatewayPath(r, gateway) + "/ips";

/** A form that makes something that has a name alone. */
const named = (title: string, about: string, path: string, spec: Record<string, unknown>, said: (name: string) => string): Form => ({
  title,
  about,
  submit: "Make it",
  fields: [{ kind: "text", id: "name", label: "Name" }],
  run: async (typed) => {
    const name = text(typed, "name");
    await call("POST", path, { metadata: { name }, spec });
    return { said: said(name) };
  },
});

export const vpcs = records<Resource>({
  title: "VPCs",
  about: "Sandboxes of one VPC that name the same subnet reach each other.",
  scope: "admin",
  path: () => "/vpcs",
  id: (v) => v.metadata.name,
  words: (v) => v.metadata.name,
  columns: [
    { name: "Name", show: (v) => <b>{v.metadata.name}</b> },
    { name: "Status", show: (v) => <Status is={v.status} /> },
    { name: "Created", wide: true, show: (v) => <Time at={v.metadata.createdAt} /> },
  ],
  create: { label: "Make a VPC", scope: "admin", form: () => named("Make a VPC", "It begins without gateways and subnets.", "/vpcs", {}, (name) => `The VPC ${name} is ready.`) },
  acts: [
    {
      label: "Add a gateway",
      scope: "admin",
      form: (v) => ({
        title: `Add an egress gateway to ${v.metadata.name}`,
        about: "Sandboxes that name the gateway leave from its addresses.",
        submit: "Make it",
        fields: [{ kind: "text", id: "name", label: "Name", example: "office" }],
        run: async (typed) => {
          const name = text(typed, "name");
          const { regions } = await get<{ regions: { name: string }[] }>("/configuration");
          await call("POST", gatewaysPath(v.metadata.name), { metadata: { name }, spec: { region: regions[0]?.name } });
          return { said: `The gateway ${name} is ready. Give it an address.` };
        },
      }),
    },
    {
      ...deletion<Resource>("admin", (v) => ({ noun: "VPC", name: v.metadata.name, path: vpcPath(v.metadata.name), about: "Its gateways have to be gone before." })),
      when: (v) => v.metadata.name !== "default",
    },
  ],
  empty: "There are no VPCs.",
});

export const gateways = records<Resource>({
  title: "Egress gateways",
  scope: "admin",
  path: () => "/egressgateways",
  id: (g) => g.metadata.name,
  words: (g) => `${g.metadata.name} ${g.metadata.vpcName ?? ""}`,
  columns: [
    { name: "Name", show: (g) => <b>{g.metadata.name}</b> },
    { name: "VPC", show: (g) => g.metadata.vpcName ?? "" },
    { name: "Status", show: (g) => <Status is={g.status} /> },
    { name: "Created", wide: true, show: (g) => <Time at={g.metadata.createdAt} /> },
  ],
  acts: [
    {
      label: "Add an address",
      scope: "admin",
      form: (g) => named(`Give ${g.metadata.name} an address`, "It gets a free address of those that the operator named.", addressesPath(g), {}, (name) => `The address ${name} is made. Its status says whether one was free.`),
    },
    deletion<Resource>("admin", (g) => ({ noun: "gateway", name: g.metadata.name, path: gatewayPath(g), about: "Its addresses have to be gone before." })),
  ],
  empty: "There are no egress gateways. A VPC can get one.",
});

export const addresses = records<Resource>({
  title: "Dedicated addresses",
  scope: "admin",
  path: () => "/egressips",
  id: (a) => a.metadata.name,
  words: (a) => `${a.metadata.name} ${a.metadata.gatewayName ?? ""} ${a.spec.publicIp ?? ""}`,
  columns: [
    { name: "Name", show: (a) => <b>{a.metadata.name}</b> },
    { name: "Address", show: (a) => <code>{a.spec.publicIp}</code> },
    { name: "Gateway", show: (a) => a.metadata.gatewayName ?? "" },
    { name: "Status", show: (a) => <><Status is={a.status} />{a.status === "FAILED" && <div class="quiet">{a.events?.at(-1)?.message}</div>}</> },
    { name: "Created", wide: true, show: (a) => <Time at={a.metadata.createdAt} /> },
  ],
  acts: [
    deletion<Resource>("admin", (a) => ({ noun: "address", name: a.metadata.name, path: `${addressesPath(a, a.metadata.gatewayName)}/${encodeURIComponent(a.metadata.name)}`, about: "Somebody else may get it. Take it off the allowlists of others first." })),
  ],
  empty: "There are no dedicated addresses. A gateway can get one.",
});

type Domain = Answer<"CustomDomain">;

const domainPath = (name: string): string => "/customdomains/" + encodeURIComponent(name);

export const domains = records<Domain>({
  title: "Custom domains",
  scope: "customdomains:list",
  path: () => "/customdomains",
  id: (d) => d.metadata.name,
  words: (d) => d.metadata.name,
  columns: [
    { name: "Domain", show: (d) => <><b>{d.metadata.name}</b>{d.metadata.sharedFromWorkspace && <span class="quiet"> of {d.metadata.sharedFromWorkspace}</span>}</> },
    { name: "State", show: (d) => <><Status is={d.spec.status} />{d.spec.verificationError && <div class="quiet">{d.spec.verificationError}</div>}</> },
    {
      name: "Records to set in the DNS",
      show: (d) => (
        <div class="long">
          {Object.entries(d.spec.txtRecords).map(([name, value]) => <div key={name}>TXT <code>{name}</code> = <code>{value}</code></div>)}
          {d.spec.cnameRecords && d.spec.subjectAlternativeNames.map((name) => <div key={name}>CNAME <code>{name}</code> = <code>{d.spec.cnameRecords}</code></div>)}
        </div>
      ),
    },
    { name: "Verified", wide: true, show: (d) => <Time at={d.spec.lastVerifiedAt} none="never" /> },
  ],
  create: {
    label: "Add a domain",
    scope: "customdomains:create",
    form: () => named("Add a domain", "The table shows the records that its owner has to set. Then verify it.", "/customdomains", {}, (name) => `${name} is added. Set its records, and verify it.`),
  },
  acts: [
    {
      label: "Verify",
      scope: "customdomains:update",
      when: (d) => !d.metadata.sharedFromWorkspace,
      run: async (d) => {
        const now = await call<Domain>("POST", domainPath(d.metadata.name) + "/verify");
        return { said: now.spec.status === "verified" ? `${d.metadata.name} is verified.` : `Not yet: ${now.spec.verificationError ?? "the records are not there"}.` };
      },
    },
    {
      ...deletion<Domain>("customdomains:delete", (d) => ({ noun: "domain", name: d.metadata.name, path: domainPath(d.metadata.name), about: "The platform refuses while a preview uses it, or while it is shared." })),
      when: (d) => !d.metadata.sharedFromWorkspace,
    },
  ],
  empty: "There are no custom domains. Previews have names of the platform.",
});

type Policy = Answer<"Policy">;

export const policies = records<Policy>({
  title: "Policies",
  scope: "policies:list",
  path: () => "/policies",
  paged: true,
  id: (p) => p.metadata.name,
  words: () => "",
  columns: [
    { name: "Name", show: (p) => <b>{p.metadata.name}</b> },
    { name: "Type", show: (p) => p.spec.type ?? "" },
    { name: "Of", show: (p) => [...(p.spec.locations ?? []), ...(p.spec.flavors ?? [])].map((e) => e.name).join(", ") },
    { name: "For", wide: true, show: (p) => (p.spec.resourceTypes ?? []).join(", ") },
    { name: "Created", wide: true, show: (p) => <Time at={p.metadata.createdAt} /> },
  ],
  acts: [
    deletion<Policy>("policies:delete", (p) => ({ noun: "policy", name: p.metadata.name, path: "/policies/" + encodeURIComponent(p.metadata.name) })),
  ],
  empty: "There are no policies. Clients that use them make them.",
});

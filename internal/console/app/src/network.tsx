// The network of one sandbox: its rules in short, where it connected to of late, and what it
// was refused. The platform remembers that, so looking does not wake the sandbox.
import { useEffect, useState } from "preact/hooks";
import type { VNode } from "preact";
import { call, get, may, type Network, type Sandbox, type Answer } from "./api";
import { ago, moment, plural } from "./format";
import { Fault, now, readOnly, reason, tell } from "./ui";

const lookEvery = 10_000; // ms
const shownMax = 5; // entries of a list

type Destination = Answer<"EgressDestination">;

type Summary = Answer<"EgressSummary">;

const allowedBy = (n: Network): string[] => (n.proxy?.allowedDomains?.length ? n.proxy.allowedDomains : (n.allowedDomains ?? []));

/** The rules of a sandbox, with one more destination that it may reach. */
function allowing(n: Network, destination: string): Network {
  const more = [...allowedBy(n), destination];
  return n.proxy?.allowedDomains?.length ? { ...n, proxy: { ...n.proxy, allowedDomains: more } } : { ...n, allowedDomains: more };
}

/** Whether an entry of a list is about a destination. */
function covers(entry: string, d: Destination): boolean {
  const [name = "", port] = entry.split(":");
  if (port && Number(port) !== d.port) return false;
  return name === "*" || name === d.host || (name.startsWith("*.") && d.host.endsWith(name.slice(1)));
}

const target = (d: Destination): string => (d.port === 0 ? d.host : `${d.host.includes(":") ? `[${d.host}]` : d.host}:${d.port}`);

const few = (all: string[]): string => all.slice(0, shownMax).join(", ") + (all.length > shownMax ? ` and ${all.length - shownMax} more` : "");

/** The rules in short. */
function rules(n: Network): string {
  const allowed = allowedBy(n);
  const forbidden = n.proxy?.forbiddenDomains?.length ? n.proxy.forbiddenDomains : (n.forbiddenDomains ?? []);
  const all = [allowed.length > 0 ? `It may reach ${few(allowed)}.` : forbidden.length > 0 ? `It may not reach ${few(forbidden)}.` : "It has no list of domains."];
  if (n.proxy?.bypass?.length) all.push(`These go past the list: ${few(n.proxy.bypass)}.`);
  if (n.proxy?.routing?.length) all.push(`It has ${plural(n.proxy.routing.length, "routing rule")}.`);
  return all.join(" ");
}

function Entry({ d }: { d: Destination }): VNode {
  return (
    <p>
      <code>{target(d)}</code>{" "}
      <span class="quiet">by {d.protocol}, rule <code>{d.rule}</code>, {plural(d.count, "time")}, <time dateTime={d.lastAt} title={moment(d.lastAt)}>{ago(d.lastAt, now.value)}</time></span>
    </p>
  );
}

export function NetworkCard({ name, sandbox, stamp, done }: { name: string; sandbox: Sandbox; stamp: string; done: () => void }): VNode {
  const [seen, setSeen] = useState<Summary | null>(null);
  const [fault, setFault] = useState("");
  const [busy, setBusy] = useState(false);
  const path = "/sandboxes/" + encodeURIComponent(name);
  useEffect(() => {
    const stop = new AbortController();
    const look = async (): Promise<void> => {
      if (document.hidden) return;
      try {
        setSeen(await get<Summary>(path + "/egress", stop.signal));
        setFault("");
      } catch (e) {
        if (!stop.signal.aborted) setFault(reason(e));
      }
    };
    void look();
    const timer = setInterval(() => void look(), lookEvery);
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [path, stamp]);
  const allow = async (destination: string): Promise<void> => {
    setBusy(true);
    try {
      const latest = await get<Sandbox>(path); // somebody else may have changed the rules
      await call("PUT", path, { metadata: { name }, spec: { runtime: {}, vpc: latest.spec.vpc, network: allowing(latest.spec.network ?? {}, destination) } });
      tell(`${name} may reach ${destination} now.`);
    } catch (e) {
      tell(reason(e), true);
    }
    setBusy(false);
    done();
  };
  const writes = !readOnly.value && may("sandboxes:update");
  const network = sandbox.spec.network ?? {};
  const all = seen?.destinations ?? [];
  const refused = all.filter((d) => d.verdict === "deny");
  const allowed = all.filter((d) => d.verdict === "allow");
  const key = (d: Destination): string => [d.protocol, d.host, d.port, d.rule].join(" ");
  return (
    <section class="card" aria-labelledby="network">
      <h2 id="network">Network</h2>
      <p>{rules(network)}</p>
      {fault && <Fault>{fault}</Fault>}
      {refused.length > 0 && <h3>Refused</h3>}
      {refused.length > 0 && (
        <ul class="refusals" tabIndex={0} aria-label="Refused destinations">
          {refused.map((d) => {
            const listed = allowedBy(network).some((entry) => covers(entry, d));
            return (
              <li key={key(d)}>
                <Entry d={d} />
                <p>{d.reason}</p>
                {d.rule === "allowedDomains" && listed && <p class="good">It is allowed now.</p>}
                {d.rule === "allowedDomains" && !listed && writes && (
                  <button type="button" class="small" disabled={busy} onClick={() => void allow(target(d))}>Allow {target(d)}</button>
                )}
              </li>
            );
          })}
        </ul>
      )}
      {allowed.length > 0 && <h3>Allowed</h3>}
      {allowed.length > 0 && (
        <ul class="refusals reached" tabIndex={0} aria-label="Allowed destinations">
          {allowed.map((d) => <li key={key(d)}><Entry d={d} /></li>)}
        </ul>
      )}
      {seen && (
        <p class="quiet">
          {all.length === 0 ? "Nothing was allowed or refused" : "The last 64 destinations"}
          {seen.since ? <>, since <time dateTime={seen.since} title={moment(seen.since)}>{ago(seen.since, now.value)}</time></> : ""}. A restart of the platform begins a new list.
        </p>
      )}
    </section>
  );
}

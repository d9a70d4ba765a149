// When a sandbox ends by itself.
import { call, type Sandbox } from "./api";
import { text, type Form } from "./form";
import { span } from "./format";

/** When it ends by itself, as a sentence. */
function ending({ metadata, expiresIn }: Sandbox): string {
  return expiresIn === undefined ? `${metadata.name} does not end by itself.` : `${metadata.name} ends by itself in ${span(expiresIn)}.`;
}

/** Asks for other deadlines. All other members stay as they are: the call leaves them out. */
export function extension(sandbox: Sandbox): Form {
  const { name } = sandbox.metadata;
  const { ttl, expires } = sandbox.spec.runtime;
  const policies = (sandbox.spec.lifecycle?.expirationPolicies ?? []).map((p) => `${p.type} ${p.value}`);
  return {
    title: `Change when ${name} ends`,
    about: `${ending(sandbox)} It ends at the earliest of its deadlines, and its files are lost then.${policies.length > 0 ? ` Its policies hold too: ${policies.join(", ")}.` : ""}`,
    submit: "Change it",
    fields: [
      { kind: "text", id: "ttl", label: "Time to live", optional: true, value: ttl, pattern: "[0-9]+[smhdw]", example: "7d", hint: "It counts from the creation of the sandbox. 30m, 24h, 7d or 2w, for example." },
      { kind: "text", id: "expires", label: "Moment", optional: true, value: expires, example: "2030-01-31T03:00:00Z", hint: "A date, or a date with a time and a zone." },
    ],
    run: async (typed) => {
      const after = await call<Sandbox>("PUT", "/sandboxes/" + encodeURIComponent(name), { spec: { runtime: { ttl: text(typed, "ttl"), expires: text(typed, "expires") } } });
      return { said: ending(after) };
    },
  };
}

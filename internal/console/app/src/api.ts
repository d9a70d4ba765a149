// The control API, as the page calls it. Every call of the page is here.
import { batch, signal } from "@preact/signals";

import type { components } from "./schema";

/** A type of the API, as its description has it: docs/openapi.json. */
export type Answer<N extends keyof components["schemas"]> = components["schemas"][N];

/** What a list answers. The version asks for this form. */
export interface List<T> {
  data: T[];
  meta: { hasMore: boolean; nextCursor?: string; total: number };
}

export type Caller = Answer<"Caller">;
export type TraceStage = Answer<"TraceStage">;
export type Trace = Answer<"Trace">;
export type Usage = Answer<"SandboxUsage">;

/** A sandbox in the feed. */
export type FeedSandbox = Answer<"FeedSandbox">;

/** The data of a message of the feed. */
export type FeedMessage = Answer<"FeedMessage">;

/** What a sandbox was forked from, as it was then. */
export type Origin = Answer<"Origin">;
export type SandboxEvent = Answer<"Event">;
export type Sandbox = Answer<"Sandbox">;

/** A variable of the processes of a sandbox. Secret values come masked. */
export type Variable = Answer<"Env">;

/** The members that the page changes. All others go back as they came. */
export type Network = Answer<"Network">;
export type Snapshot = Answer<"Snapshot">;
export type Preview = Answer<"Preview">;
export type HistorySeries = Answer<"HistorySeries">;
export type History = Answer<"History">;

/** A session is in the storage of one tab. It ends with the tab. */
export interface Session {
  token: string;
  workspace?: string;
  /** Of a login with a password: what renews the token. */
  refresh?: string;
}

const place = "doze.session";
/** The client of the platform that programs of its own have. */
const client = "doze";

/** What an answer that is no success says. A status of 0 is a platform that does not answer. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly retryAfter = 0,
    readonly code = "",
  ) {
    super(message);
  }
}

export const session = signal<Session | null>(stored());
export const caller = signal<Caller | null>(null);
/** Why the last session ended, for the page that begins the next one. */
export const ended = signal("");

function stored(): Session | null {
  try {
    return JSON.parse(sessionStorage.getItem(place) ?? "null") as Session | null;
  } catch {
    return null;
  }
}

export function begin(s: Session): void {
  sessionStorage.setItem(place, JSON.stringify(s));
  session.value = s;
}

export function end(why: string): void {
  sessionStorage.removeItem(place);
  caller.value = null;
  session.value = null;
  ended.value = why;
}

/** Ends the session, and the grant behind it if there is one. A key stays as it is. */
export async function logOut(): Promise<void> {
  const s = session.value;
  end("");
  if (s?.refresh) {
    await form("/oauth/revoke", { token: s.refresh }).catch(() => undefined); // it ends by itself
  }
}

/** Waits for the beginning of an answer. One that is no success is thrown, with what it says. */
async function begun(request: Promise<Response>): Promise<Response> {
  let r: Response;
  try {
    r = await request;
  } catch (e) {
    if (e instanceof DOMException && e.name === "AbortError") throw e;
    throw new Refusal(0, "The platform does not answer.");
  }
  if (r.ok) return r;
  throw refusal(r.status, await r.text(), Number(r.headers.get("Retry-After")) || 0);
}

/** What an answer that is no success says. */
export function refusal(status: number, text: string, retryAfter = 0): Refusal {
  let said: { message?: string; error?: string; error_description?: string } = {};
  try {
    said = (JSON.parse(text) ?? {}) as typeof said;
  } catch {
    // it is not from the platform
  }
  return new Refusal(status, sentence(said.error_description ?? said.message ?? said.error ?? `The platform answers ${status}.`), retryAfter, said.error ?? "");
}

async function answer<T>(request: Promise<Response>): Promise<T> {
  const r = await begun(request);
  const text = await r.text();
  try {
    return (text ? JSON.parse(text) : null) as T;
  } catch {
    throw new Refusal(r.status, "The answer is not from a Doze platform.");
  }
}

/** Errors of the API are clauses: here they stand alone. */
export function sentence(text: string): string {
  const upper = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(upper) ? upper : upper + ".";
}

function form<T>(path: string, values: Record<string, string>): Promise<T> {
  return answer<T>(fetch("/v0" + path, { method: "POST", body: new URLSearchParams(values), credentials: "omit", cache: "no-store" }));
}

function request(s: Session, method: string, path: string, body?: unknown, signal?: AbortSignal, more: Record<string, string> = {}): Promise<Response> {
  const headers: Record<string, string> = { Authorization: "Bearer " + s.token, Accept: "application/json", "Blaxel-Version": "2026-04-28", ...more };
  if (s.workspace) headers["X-Blaxel-Workspace"] = s.workspace;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return fetch("/v0" + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, credentials: "omit", cache: "no-store" });
}

const send = <T>(s: Session, method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> => answer<T>(request(s, method, path, body, signal));

let renewal: Promise<Session> | null = null;

/** Renews the token of a session, once for all calls that wait for it. */
function renew(s: Session): Promise<Session> {
  renewal ??= form<{ access_token: string; refresh_token?: string }>("/oauth/token", { grant_type: "refresh_token", refresh_token: s.refresh ?? "", client_id: client })
    .then((t) => {
      const next = { ...s, token: t.access_token, refresh: t.refresh_token ?? s.refresh };
      begin(next);
      return next;
    })
    .finally(() => (renewal = null));
  return renewal;
}

/** Makes a call with the session as it is. A token that is over is renewed once. */
async function withSession<T>(use: (s: Session) => Promise<T>): Promise<T> {
  const s = session.value;
  if (!s) throw new Refusal(401, "Log in first.");
  try {
    return await use(s);
  } catch (e) {
    if (!(e instanceof Refusal) || e.status !== 401 || session.value === null) throw e;
    if (s.refresh) {
      try {
        const next = session.value.token === s.token ? await renew(s) : session.value;
        return await use(next);
      } catch (again) {
        if (!(again instanceof Refusal) || again.status === 0 || again.status >= 500) throw again;
      }
    }
    end("The session is over: " + e.message);
    throw e;
  }
}

export const call = <T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> => withSession((s) => send<T>(s, method, path, body, signal));

/** Makes a call whose answer has more than JSON: headers, or a body that comes bit by bit. */
export const fetched = (method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> => withSession((s) => begun(request(s, method, path, body, signal)));

/** Opens a stream of events, behind the last message that the caller has. */
export async function stream(path: string, last: string, signal: AbortSignal): Promise<ReadableStream<Uint8Array>> {
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (last) headers["Last-Event-ID"] = last;
  const r = await withSession((s) => begun(request(s, "GET", path, undefined, signal, headers)));
  if (!r.body) throw new Refusal(r.status, "The answer is not from a Doze platform.");
  return r.body;
}

/** Sends a request to another path of the platform with the session, which it renews once. Nothing follows a redirect: a sandbox could answer one to the API. */
export async function reach(path: string, init: RequestInit): Promise<Response> {
  let s = session.value;
  for (let renewed = false; s; renewed = true) {
    const headers = new Headers(init.headers);
    headers.set("Authorization", "Bearer " + s.token);
    if (s.workspace) headers.set("X-Blaxel-Workspace", s.workspace);
    let r: Response;
    try {
      r = await fetch(path, { ...init, headers, redirect: "error", credentials: "omit", cache: "no-store" });
    } catch (e) {
      if (e instanceof DOMException && e.name === "AbortError") throw e;
      throw new Refusal(0, "The platform does not answer.");
    }
    if (r.status !== 401 || !s.refresh || renewed) return r;
    s = session.value?.token === s.token ? await renew(s) : session.value;
  }
  throw new Refusal(401, "Log in first.");
}

export const get = <T>(path: string, signal?: AbortSignal): Promise<T> => call<T>("GET", path, undefined, signal);

/** Proves a session and says whose it is. Without a workspace, it gets the first one. */
export async function open(s: Session): Promise<void> {
  let who: Caller;
  try {
    who = await send<Caller>(s, "GET", "/whoami");
  } catch (e) {
    if (!(e instanceof Refusal) || e.status !== 401 || !s.refresh) throw e;
    s = await renew(s);
    who = await send<Caller>(s, "GET", "/whoami");
  }
  if (!who.workspace) {
    const all = await send<{ name: string }[] | List<{ name: string }>>(s, "GET", "/workspaces");
    const first = (Array.isArray(all) ? all : all.data)[0];
    if (!first) throw new Refusal(403, "You are a member of no workspace. Ask an administrator for an invitation.");
    s = { ...s, workspace: first.name };
    who = await send<Caller>(s, "GET", "/whoami");
  }
  const proven = s;
  batch(() => {
    ended.value = "";
    begin(proven);
    caller.value = who;
  });
}

export async function workspaces(): Promise<string[]> {
  const all = await get<{ name: string }[] | List<{ name: string }>>("/workspaces");
  return (Array.isArray(all) ? all : all.data).map((w) => w.name);
}

/** The scopes that need the role admin, whatever the credential has. */
const forAdmins = ["admin", "workspaces:delete", "workspaces:invite", "workspaces:remove", "workspaces:update"];

/** Whether the caller may do what needs a scope: both the credential and the role must allow it. */
export function may(scope: string): boolean {
  const c = caller.value;
  if (!c?.role) return false;
  return (c.scopes.includes(scope) || c.scopes.includes("admin")) && (c.role === "admin" || !forAdmins.includes(scope));
}

export type Device = Answer<"DeviceAnswer">;

export const beginDevice = (): Promise<Device> => form<Device>("/login/device", { client_id: client });

/** Asks whether the user agreed. It returns null while they have not. */
export async function askDevice(d: Device): Promise<Session | null> {
  try {
    const t = await form<{ access_token: string; refresh_token?: string }>("/oauth/token", {
      grant_type: "urn:ietf:params:oauth:grant-type:device_code",
      device_code: d.device_code,
      client_id: client,
    });
    return { token: t.access_token, refresh: t.refresh_token };
  } catch (e) {
    if (e instanceof Refusal && (e.status === 0 || e.status === 429 || e.code === "authorization_pending" || e.code === "slow_down")) return null;
    throw e;
  }
}

// The way in: a key of the API, or a name and a password on a page of the platform.
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { askDevice, beginDevice, ended, open, type Device } from "./api";
import { Fault, Logo, reason } from "./ui";

export function Login(): VNode {
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState(ended.value);
  const [device, setDevice] = useState<Device | null>(null);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    document.title = "Log in – Doze";
    field.current?.focus();
  }, []);
  const enter = async (e: Event): Promise<void> => {
    e.preventDefault();
    if (!key.trim()) {
      setFault("Type a key of the API. The first one is in the file admin.key of the data directory.");
      field.current?.focus();
      return;
    }
    setBusy(true);
    setFault("");
    try {
      await open({ token: key.trim() });
    } catch (e) {
      setFault(reason(e));
      setBusy(false);
      field.current?.focus();
    }
  };
  const password = async (): Promise<void> => {
    setFault("");
    setBusy(true);
    try {
      setDevice(await beginDevice());
    } catch (e) {
      setFault(reason(e));
    }
    setBusy(false);
  };
  return (
    <main class="login">
      <div class="card">
        <Logo />
        <h1>Doze</h1>
        <p class="quiet">Sandboxes that sleep until you need them.</p>
        {device ? (
          <Approval device={device} cancel={() => setDevice(null)} fail={(why) => (setDevice(null), setFault(why))} />
        ) : (
          <>
            <form onSubmit={enter}>
              <label for="key">API key</label>
              <input
                id="key" ref={field} type="password" autocomplete="off" spellcheck={false} value={key} aria-describedby="key-help"
                onInput={(e) => setKey(e.currentTarget.value)}
              />
              <p id="key-help" class="hint">It stays in this tab, and is gone when you close it.</p>
              <button class="primary wide" type="submit" disabled={busy}>
                {busy ? "Checking…" : "Log in with the key"}
              </button>
            </form>
            <p class="or"><span>or</span></p>
            <button class="wide" type="button" disabled={busy} onClick={password}>
              Log in with a password
            </button>
          </>
        )}
        <div aria-live="assertive">{fault && <Fault>{fault}</Fault>}</div>
      </div>
    </main>
  );
}

interface ApprovalProps {
  device: Device;
  cancel: () => void;
  fail: (why: string) => void;
}

/** Waits until the user has agreed, on the page of the platform that asks for passwords. */
function Approval({ device, cancel, fail }: ApprovalProps): VNode {
  const link = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    link.current?.focus();
    let over = false;
    const until = Date.now() + device.expires_in * 1000;
    const next = (): void => void setTimeout(once, (device.interval + 0.5) * 1000);
    const once = async (): Promise<void> => {
      if (over) return;
      if (Date.now() > until) return fail("Nobody agreed in time. Begin again.");
      try {
        const s = await askDevice(device);
        if (over) return;
        if (!s) return next();
        await open(s);
      } catch (e) {
        if (!over) fail(reason(e));
      }
    };
    next();
    return () => void (over = true);
  }, [device]);
  // The page may have another name to the world than this tab has: the path is the same.
  const address = new URL(device.verification_uri_complete);
  return (
    <div class="approval">
      <p>
        Type your name and password on the page of the platform, and compare this code:
      </p>
      <p class="code" aria-label={"Code " + device.user_code.split("").join(" ")}>{device.user_code}</p>
      <a ref={link} class="button primary wide" target="_blank" rel="noopener noreferrer" href={address.pathname + address.search}>
        Open the page
      </a>
      <p class="hint" role="status">Waiting for you to agree there…</p>
      <button type="button" class="plain" onClick={cancel}>Cancel</button>
    </div>
  );
}


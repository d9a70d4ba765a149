// What is amiss with the host of the platform. Only operators get it.
import { signal } from "@preact/signals";
import { get, Refusal, type Answer } from "./api";
import { reason } from "./ui";

export type Finding = Answer<"Finding">;

type Checkup = Answer<"Checkup">;

const rest = 60_000; // ms between two questions

export const checkup = signal<Checkup | null>(null);
/** Why the platform could not say. */
export const fault = signal("");

let asked = -Infinity;
/** The caller is no operator. */
let refused = false;

/** Leaves nothing for the next session. */
export function forget(): void {
  asked = -Infinity;
  refused = false;
  checkup.value = null;
  fault.value = "";
}

async function ask(stop: AbortSignal): Promise<void> {
  asked = Date.now();
  try {
    checkup.value = await get<Checkup>("/platform/doctor", stop);
    fault.value = "";
  } catch (e) {
    if (stop.aborted) {
      asked = -Infinity; // nobody got an answer
      return;
    }
    refused = e instanceof Refusal && (e.status === 403 || e.status === 501);
    if (refused) checkup.value = null;
    fault.value = refused ? "" : reason(e);
  }
}

/** Asks at once and then each minute while the page is shown, until the function that it returns is called. */
export function follow(): () => void {
  const stop = new AbortController();
  let timer = 0;
  const next = async (): Promise<void> => {
    clearTimeout(timer);
    if (!document.hidden && Date.now() - asked >= rest) await ask(stop.signal);
    if (stop.signal.aborted || refused || document.hidden) return;
    clearTimeout(timer);
    timer = window.setTimeout(() => void next(), Math.max(1000, asked + rest - Date.now()));
  };
  const shown = (): void => void next();
  document.addEventListener("visibilitychange", shown);
  if (!refused) void next();
  return () => {
    document.removeEventListener("visibilitychange", shown);
    clearTimeout(timer);
    stop.abort();
  };
}

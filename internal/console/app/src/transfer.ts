// Files on their way to the platform, and from it.
import { fetched, refusal, Refusal } from "./api";
import type { Progress } from "./form";
import { bytes } from "./format";

/**
 * Puts a file to an address that the platform gave for it. Such an address is a credential of its
 * own. The page may have another name to the platform than this tab has: the path is the same.
 */
export function put<T>(to: string, file: File, progress: Progress, stop: AbortSignal): Promise<T> {
  const address = new URL(to);
  return new Promise((resolve, reject) => {
    const r = new XMLHttpRequest(); // fetch does not say how far an upload is
    r.open("PUT", address.pathname + address.search);
    r.upload.onprogress = (e) => progress(e.total ? e.loaded / e.total : 0, `${bytes(e.loaded)} of ${bytes(file.size)} are uploaded.`);
    r.upload.onload = () => progress(1, "The platform looks at the files…");
    stop.addEventListener("abort", () => r.abort());
    r.onabort = () => reject(new Refusal(0, "The upload is cancelled."));
    r.onerror = () => reject(new Refusal(0, "The upload was cut. Try again."));
    r.onload = () => {
      if (r.status < 200 || r.status > 299) return reject(refusal(r.status, r.responseText));
      try {
        resolve(JSON.parse(r.responseText) as T);
      } catch {
        reject(new Refusal(r.status, "The answer is not from a Doze platform."));
      }
    };
    progress(0, "The upload begins…");
    r.send(file);
  });
}

/** Downloads what the API answers, and has the browser save it as a file. */
export async function save(path: string, name: string): Promise<void> {
  const r = await fetched("GET", path);
  const address = URL.createObjectURL(await r.blob());
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // the browser reads it meanwhile
}

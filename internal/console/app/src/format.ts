// Numbers and times, as people read them.

const units = ["B", "KB", "MB", "GB", "TB"];

export function bytes(n: number): string {
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return `${i === 0 || n >= 100 ? Math.round(n) : n.toFixed(n >= 10 ? 0 : 1)} ${units[i]}`;
}

/** A time that something took, in microseconds. */
export function took(us: number): string {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${us < 1e4 ? (us / 1000).toFixed(1) : Math.round(us / 1000)} ms`;
  return `${(us / 1e6).toFixed(us < 1e7 ? 2 : 1)} s`;
}

export const count = (n: number): string => n.toLocaleString("en");

export function plural(n: number, one: string, more = one + "s"): string {
  return `${count(n)} ${n === 1 ? one : more}`;
}

/** A time of seconds, in its largest unit. */
export function span(s: number): string {
  if (s < 1) return "now";
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

export function ago(time: string | number | undefined, now: number): string {
  if (!time) return "never";
  const s = (now - (typeof time === "number" ? time : Date.parse(time))) / 1000;
  return s < 1 ? "now" : `${span(s)} ago`;
}

export function clock(time: string | number, seconds = true): string {
  return new Date(time).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined });
}

export function moment(time: string | number): string {
  const d = new Date(time);
  return `${d.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${clock(time)}`;
}

// A view that is open and idle lets go of its sandbox, which can sleep then.

/** After this time without anything, in milliseconds. */
export const idleAfter = 60_000;

/** Calls off once, after a minute in which nobody called touch. */
export class Idle {
  private timer = 0;

  constructor(private readonly off: () => void) {
    this.touch();
  }

  touch(): void {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(this.off, idleAfter);
  }

  stop(): void {
    clearTimeout(this.timer);
  }
}

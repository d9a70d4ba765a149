// Text of a sandbox, for a page. A sandbox chooses its bytes: they are shown as text, and no
// character in them moves, hides or turns what is beside it.

// What a terminal obeys: commands that begin with CSI or OSC, and those of two characters.
const commands = /\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]/g;
// Control characters, those without a width, and those that change the direction of text.
const unseen = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

const code = (c: string): string => `\\u{${c.charCodeAt(0).toString(16)}}`;

/** A name, with each character that nobody would see in its written form. */
export const visible = (text: string): string => text.replace(/[\t\n]/g, code).replace(unseen, code);

/** A line of output without the commands for a terminal. */
export const printed = (text: string): string => text.replace(commands, "").replace(/\r$/, "").replace(unseen, code);

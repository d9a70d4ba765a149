// The emulator of the terminal: it is loaded when a terminal opens.
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "./styled";
import { colour } from "./ui";

export interface Emulator {
  write: (text: string) => void;
  reset: () => void;
  focus: () => void;
  paint: () => void;
  size: () => { cols: number; rows: number };
  read: (on: boolean) => void;
  close: () => void;
}

interface Events {
  typed: (text: string) => void;
  resized: (cols: number, rows: number) => void;
  /** The reader wants out of the terminal, which takes all other keys. */
  left: () => void;
}

const scrollback = 5000; // lines

const palette = {
  dark: { red: "#ff8f8f", green: "#7fd6a4", yellow: "#ffc86b", blue: "#8ea2ff", magenta: "#d9a3f5", cyan: "#7fcbe6", white: "#d7daf0", brightBlack: "#8c93c0" },
  light: { red: "#b3261e", green: "#1c7a49", yellow: "#8a5a00", blue: "#3d4fc4", magenta: "#7d2ea8", cyan: "#1a6485", white: "#5b5f7b", brightBlack: "#5b5f7b" },
};

function theme(): object {
  const p = palette[document.documentElement.dataset.theme === "light" ? "light" : "dark"];
  return {
    background: colour("--back"), foreground: colour("--ink"), cursor: colour("--accent"), cursorAccent: colour("--back"),
    selectionBackground: colour("--accent") + "55", black: colour("--line"), ...p,
    brightRed: p.red, brightGreen: p.green, brightYellow: p.yellow, brightBlue: p.blue, brightMagenta: p.magenta, brightCyan: p.cyan, brightWhite: colour("--ink"),
  };
}

/** Opens an emulator in an element. */
export function emulate(parent: HTMLElement, on: Events): Emulator {
  const terminal = new Terminal({
    theme: theme(), scrollback, cursorBlink: false, fontSize: 14, minimumContrastRatio: 4.5,
    fontFamily: 'ui-monospace, "SF Mono", "DejaVu Sans Mono", monospace',
    linkHandler: { activate: () => undefined }, // output opens no addresses
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(parent);
  terminal.attachCustomKeyEventHandler((e) => {
    if (e.key !== "F6" || !e.shiftKey) return true;
    e.preventDefault();
    if (e.type === "keydown") on.left();
    return false;
  });
  terminal.onData(on.typed);
  terminal.onResize(({ cols, rows }) => on.resized(cols, rows));
  fit.fit();
  const grown = new ResizeObserver(() => fit.fit());
  grown.observe(parent);
  return {
    write: (text) => terminal.write(text),
    reset: () => terminal.reset(),
    focus: () => terminal.focus(),
    paint: () => (terminal.options.theme = theme()),
    size: () => ({ cols: terminal.cols, rows: terminal.rows }),
    read: (aloud) => (terminal.options.screenReaderMode = aloud),
    close: () => {
      grown.disconnect();
      terminal.dispose();
    },
  };
}

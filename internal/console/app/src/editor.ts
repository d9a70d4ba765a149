// The editor of texts, and what compares two of them: it is loaded when a text opens. It is
// in a shadow root, where it takes constructed style sheets: the policy of the page refuses
// others.
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { unifiedMergeView } from "@codemirror/merge";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { EditorState, type Extension, type Text } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, highlightSpecialChars, keymap, lineNumbers } from "@codemirror/view";

export interface Editor {
  text: () => string;
  /** Compares with another text from now on. */
  rebase: (text: string) => void;
  close: () => void;
}

interface Options {
  text: string;
  /** The text that changes are compared with. */
  opened: string;
  lineEnd: string;
  writable: boolean;
  label: string;
  changed: (dirty: boolean) => void;
}

const looks = EditorView.theme({
  "&": { color: "var(--ink)", backgroundColor: "var(--back)", border: "1px solid var(--line)", borderRadius: "9px", height: "min(60vh, 44rem)", fontSize: "14px" },
  "&.cm-focused": { outline: "2px solid var(--accent)" },
  ".cm-scroller": { fontFamily: 'ui-monospace, "SF Mono", "DejaVu Sans Mono", monospace', lineHeight: "1.5" },
  ".cm-content": { caretColor: "var(--ink)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-gutters": { color: "var(--quiet)", backgroundColor: "var(--back)", borderRight: "1px solid var(--line)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "transparent" },
  "& > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": { background: "color-mix(in srgb, var(--accent) 35%, transparent)" },
  ".cm-specialChar": { color: "var(--bad)" },
  ".cm-panels, .cm-panels.cm-panels-top": { color: "var(--ink)", backgroundColor: "var(--card)", borderColor: "var(--line)" },
  ".cm-textfield, .cm-button": { color: "var(--ink)", background: "var(--raised)", border: "1px solid var(--line)", borderRadius: "6px" },
  ".cm-searchMatch": { backgroundColor: "color-mix(in srgb, var(--warn) 35%, transparent)" },
  ".cm-changedLine, .cm-insertedLine": { background: "color-mix(in srgb, var(--good) 16%, transparent) !important", textDecoration: "none" },
  ".cm-changedText": { background: "color-mix(in srgb, var(--good) 30%, transparent) !important" },
  ".cm-deletedChunk": { background: "color-mix(in srgb, var(--bad) 14%, transparent) !important" },
  ".cm-deletedChunk .cm-deletedText": { background: "color-mix(in srgb, var(--bad) 28%, transparent) !important" },
  ".cm-collapsedLines": { color: "var(--ink)", background: "var(--raised)" },
});

const common = (label: string, lineEnd: string): Extension => [
  lineNumbers(), highlightSpecialChars(), drawSelection(), EditorView.lineWrapping, EditorState.lineSeparator.of(lineEnd), looks,
  EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }),
];

function show(parent: HTMLElement, doc: string, extensions: Extension): EditorView {
  const root = parent.shadowRoot ?? parent.attachShadow({ mode: "open" });
  return new EditorView({ root, parent: root, state: EditorState.create({ doc, extensions }) });
}

/** Opens an editor in an element. */
export function edit(parent: HTMLElement, o: Options): Editor {
  const docOf = (doc: string): Text => EditorState.create({ doc, extensions: EditorState.lineSeparator.of(o.lineEnd) }).doc;
  let opened = docOf(o.opened);
  const view = show(parent, o.text, [
    common(o.label, o.lineEnd), history(), highlightActiveLine(), highlightSelectionMatches(), search({ top: true }),
    keymap.of([...defaultKeymap, ...historyKeymap, ...searchKeymap]),
    EditorState.readOnly.of(!o.writable), EditorView.editable.of(o.writable),
    EditorView.updateListener.of((u) => {
      if (u.docChanged) o.changed(!u.state.doc.eq(opened));
    }),
  ]);
  return { text: () => view.state.sliceDoc(), rebase: (text) => (opened = docOf(text)), close: () => view.destroy() };
}

/** Shows what a text has that another had not, and the other way around. It returns what ends it. */
export function compare(parent: HTMLElement, before: string, after: string, lineEnd: string): () => void {
  const view = show(parent, after, [
    common("What you changed", lineEnd), EditorState.readOnly.of(true), EditorView.editable.of(false),
    unifiedMergeView({ original: before, mergeControls: false, collapseUnchanged: { margin: 3, minSize: 6 }, diffConfig: { scanLimit: 1000, timeout: 1000 } }),
  ]);
  return () => view.destroy();
}

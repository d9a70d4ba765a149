// Styles for xterm.js. The policy of the page refuses styles in the markup, and xterm.js
// makes style elements and style attributes. From the import of this module on, such an
// element of the document is a constructed style sheet, and such an attribute is set as a
// property. The policy lets programs do both.

/** An element whose text is a style sheet of the document for as long as it is there. */
function sheetElement(): HTMLElement {
  const sheet = new CSSStyleSheet();
  const el = create("template");
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(el, "textContent", { set: (text: string) => sheet.replaceSync(text) });
  el.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
    Element.prototype.remove.call(el);
  };
  return el;
}

function styledElement(tag: string): HTMLElement {
  const el = create(tag);
  el.setAttribute = (name, value) => {
    if (name === "style") el.style.cssText = value;
    else Element.prototype.setAttribute.call(el, name, value);
  };
  return el;
}

const create = Document.prototype.createElement.bind(document) as (tag: string) => HTMLElement;

document.createElement = ((tag: string) => (tag === "style" ? sheetElement() : styledElement(tag))) as typeof document.createElement;

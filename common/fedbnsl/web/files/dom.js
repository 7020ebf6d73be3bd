// Elements with text. Whatever a text holds, it stays a text: nothing here parses HTML.

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Only what has changed: a screen reader is not told the same twice, and a selected text stays selected.
export function setText(id, text) {
  const element = byId(id);
  if (element && element.textContent !== text) element.textContent = text;
}

export function rows(body, content) {
  body.replaceChildren(
    ...content.map((cells) => make("tr", {}, ...cells.map(([text, kind]) => make("td", kind ? { class: kind } : {}, text)))),
  );
}

export const dash = "\u2013";

export function bytes(n) {
  if (n === null || n === undefined) return dash;
  return n >= 1e6 ? `${(n / 1e6).toFixed(2)} MB` : `${(n / 1e3).toFixed(1)} kB`;
}

export function seconds(s) {
  if (s === null || s === undefined) return dash;
  if (s > 0 && s < 0.1) return `${Math.max(1, Math.round(1000 * s))} ms`;
  if (s < 60) return s < 10 && s % 1 ? `${s.toFixed(1)} s` : `${Math.round(s)} s`;
  const minutes = Math.floor(Math.round(s) / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(s) % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function number(x, digits = 3) {
  if (x === null || x === undefined) return dash;
  const size = Math.abs(x);
  if (size > 0 && (size < 1e-3 || size >= 1e6)) return x.toExponential(digits - 2);
  return String(Number(x.toPrecision(digits)));
}

export const clock = (unix) => new Date(1000 * unix).toLocaleTimeString([], { hour12: false });

// The clock of the machine that is looked at, whatever this one's says.
let ahead = 0;
export const itsTimeIs = (unix) => { ahead = unix - Date.now() / 1000; };
export const ago = (unix) => `${seconds(Math.max(0, Math.round(Date.now() / 1000 + ahead - unix)))}`;

export function log(list, { anew, items }) {
  const atTheEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  if (anew) list.replaceChildren();
  for (const [unix, text] of items) list.append(make("li", {}, make("time", {}, clock(unix)), text));
  while (list.childElementCount > 500) list.firstElementChild.remove();
  if (atTheEnd) list.scrollTop = list.scrollHeight;
}

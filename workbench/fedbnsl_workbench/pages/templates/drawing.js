"use strict";
// A drawing of a graph comes alive; what it shows stands in its titles, too.

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// Points from one element to the next: the first takes the tab stop, arrow keys move it.
function oneTabStop(elements, next) {
  elements.forEach((element, k) => {
    element.setAttribute("tabindex", k === 0 ? "0" : "-1");
    element.addEventListener("keydown", event => {
      const way = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
      const found = way && next(element, way);
      if (way) event.preventDefault();
      if (found) {
        elements.forEach(other => other.setAttribute("tabindex", other === found ? "0" : "-1"));
        found.focus();
        found.scrollIntoView({ block: "nearest", inline: "nearest" });
      }
    });
  });
}

function middle(element) {
  const box = element.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}

// The nearest element in a direction; what lies aside counts as further.
function nearest(elements, from, [dx, dy]) {
  const [x, y] = middle(from);
  let best = null, least = Infinity;
  for (const element of elements) {
    const [ex, ey] = middle(element);
    const ahead = (ex - x) * dx + (ey - y) * dy, aside = Math.abs((ex - x) * dy) + Math.abs((ey - y) * dx);
    if (element !== from && ahead > 1 && ahead + 2 * aside < least) [best, least] = [element, ahead + 2 * aside];
  }
  return best;
}

function reached(start, steps) {
  const found = new Set(), waiting = [start];
  while (waiting.length) {
    for (const node of steps(waiting.pop())) {
      if (!found.has(node)) { found.add(node); waiting.push(node); }
    }
  }
  return found;
}

// `told`: where numbers of what is pointed at stand (`pointed`), and what leads to a chosen variable (`chosen`), in `box`.
function interactive(drawing, told) {
  const edges = all(".edge", drawing), nodes = all(".node", drawing);
  told.box.hidden = false;
  drawing.setAttribute("role", "group"); // an image would hide its parts from a screen reader
  told.pointed.textContent = "The numbers of an edge or a variable stand here.";

  // What is known of it, line by line; from now on it is shown where it is pointed at.
  function words(element) {
    const title = element.querySelector("title");
    const [head, ...numbers] = title ? title.textContent.split("\n") : [element.dataset.name];
    title?.remove(); // the browser's own box would lie over the numbers below
    const tell = () => {
      const strong = document.createElement("strong");
      strong.textContent = head;
      told.pointed.replaceChildren(strong, numbers.length ? ": " + numbers.join(" \u00b7 ") : "");
      told.box.classList.add("telling"); // and stays in sight while the drawing is
    };
    // A finger points at nothing: it clicks.
    for (const event of ["pointerenter", "click", "focus"]) element.addEventListener(event, tell);
    return [head, ...numbers];
  }

  for (const edge of edges) {
    const said = words(edge);
    const path = edge.querySelector("path"), hit = path.cloneNode();
    for (const name of ["stroke", "stroke-width", "stroke-dasharray"]) hit.removeAttribute(name);
    hit.classList.add("hit");
    edge.append(hit);
    edge.setAttribute("role", "img");
    edge.setAttribute("aria-label", said.join("; "));
  }
  const seen = edges.filter(edge => !edge.classList.contains("unsure"));
  const shown = () => edges.filter(edge => !edge.classList.contains("unsure") || edge.classList.contains("above"));
  oneTabStop(edges, (edge, [dx, dy]) => {
    const list = shown();
    return list[list.indexOf(edge) + dx + dy];
  });
  if (seen.length) edges.forEach(edge => edge.setAttribute("tabindex", edge === seen[0] ? "0" : "-1"));

  // What leads where: missing and unsure edges lead nowhere.
  const learned = seen.filter(edge => !edge.classList.contains("missing")).map(edge => ({
    edge, source: edge.dataset.source, target: edge.dataset.target, directed: edge.dataset.directed === "1",
  }));
  const parents = node => learned.filter(e => e.directed && e.target === node).map(e => e.source);
  const children = node => learned.filter(e => e.directed && e.source === node).map(e => e.target);
  const linked = node => learned.filter(e => !e.directed && (e.source === node || e.target === node))
    .map(e => (e.source === node ? e.target : e.source));
  const nameOf = new Map(nodes.map(node => [node.dataset.node, node.dataset.name]));
  const kinds = ["self", "parent", "ancestor", "child", "descendant", "linked"];
  let chosen = null;

  function choose(node) {
    chosen = node === chosen ? null : node;
    const id = chosen?.dataset.node;
    const up = chosen ? reached(id, parents) : new Set(), down = chosen ? reached(id, children) : new Set();
    const of = {
      self: new Set(chosen ? [id] : []),
      parent: new Set(chosen ? parents(id) : []), ancestor: up,
      child: new Set(chosen ? children(id) : []), descendant: down,
      linked: new Set(chosen ? linked(id) : []),
    };
    drawing.classList.toggle("chosen", chosen !== null);
    for (const each of nodes) {
      const kind = kinds.find(name => of[name].has(each.dataset.node));
      for (const name of kinds) each.classList.toggle(name, name === kind);
      each.setAttribute("aria-pressed", String(each === chosen));
    }
    for (const { edge, source, target, directed } of learned) {
      const upwards = up.has(source) && (up.has(target) || target === id);
      const downwards = down.has(target) && (down.has(source) || source === id);
      edge.classList.toggle("on", directed ? upwards || downwards : source === id || target === id);
    }
    told.chosen.replaceChildren();
    if (!chosen) return;
    told.box.classList.add("telling");
    const strong = document.createElement("strong");
    strong.textContent = chosen.dataset.name;
    told.chosen.append(strong);
    const inOrder = set => [...set].sort((a, b) => a - b);
    const beyond = (set, near) => new Set([...set].filter(each => !near.has(each)));
    const groups = [
      ["parent", "parents", of.parent], ["ancestor", "further ancestors", beyond(up, of.parent)],
      ["child", "children", of.child], ["descendant", "further descendants", beyond(down, of.child)],
      ["linked", "linked without a direction", of.linked],
    ];
    for (const [kind, words, set] of groups) {
      const chip = document.createElement("span");
      chip.className = `chip ${kind}`;
      chip.textContent = words;
      told.chosen.append("; ", chip, " ", inOrder(set).map(each => nameOf.get(each)).join(", ") || "none");
    }
  }

  for (const node of nodes) {
    node.setAttribute("role", "button");
    node.setAttribute("aria-label", words(node).join("; "));
    node.setAttribute("aria-pressed", "false");
    node.addEventListener("click", () => choose(node));
    node.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose(node);
    });
  }
  oneTabStop(nodes, (node, way) => nearest(nodes, node, way));
  drawing.addEventListener("keydown", event => { if (event.key === "Escape" && chosen) choose(chosen); });
}

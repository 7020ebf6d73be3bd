"use strict";
// All that this script shows stands on the page without it: in the tables, and in the titles of the drawing.

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

addEventListener("beforeprint", () => all("details:not(.defaults)").forEach(d => { d.open = true; }));

// ---- tables: a click on a column's head sorts by it, a second one the other way round -------------------------------

function sortable(table) {
  const heads = all("thead th", table);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("n");
      const was = head.getAttribute("aria-sort");
      const falling = was ? was === "ascending" : numeric; // of numbers the largest come first
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      sort(table.tBodies[0], column, falling);
    });
  });
}

function sort(body, column, falling) {
  const groups = []; // a row, and the rows of coefficients that belong to it
  for (const row of body.rows) {
    if (row.classList.contains("coefficients")) groups.at(-1).rows.push(row);
    else groups.push({ key: keyOf(row.cells[column]), rows: [row] });
  }
  groups.sort((a, b) => {
    if (a.key === "" || b.key === "") return (a.key === "") - (b.key === ""); // what is not known comes last
    const order = typeof a.key === typeof b.key && typeof a.key === "number" ? a.key - b.key
      : String(a.key).localeCompare(String(b.key), undefined, { numeric: true });
    return falling ? -order : order;
  });
  body.append(...groups.flatMap(group => group.rows));
}

function keyOf(cell) {
  const text = (cell.dataset.sort ?? cell.textContent).trim();
  if (text === "\u2013" || text === "") return "";
  return Number.isNaN(Number(text)) ? text : Number(text);
}

// ---- the drawing ----------------------------------------------------------------------------------------------------

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

function interactive(drawing) {
  const edges = all(".edge", drawing), nodes = all(".node", drawing);
  const toldEdge = document.getElementById("told-edge"), toldVariable = document.getElementById("told-variable");
  const told = document.getElementById("told");
  told.hidden = false;
  all(".scripted").forEach(element => { element.hidden = false; });
  drawing.setAttribute("role", "group"); // an image would hide its parts from a screen reader
  toldEdge.textContent = "The numbers of an edge stand here.";

  for (const edge of edges) {
    const title = edge.querySelector("title"), [head, ...numbers] = title.textContent.split("\n");
    title.remove(); // the browser's own box would lie over the numbers below
    const path = edge.querySelector("path"), hit = path.cloneNode();
    for (const name of ["stroke", "stroke-width", "stroke-dasharray"]) hit.removeAttribute(name);
    hit.classList.add("hit");
    edge.append(hit);
    edge.setAttribute("role", "img");
    edge.setAttribute("aria-label", [head, ...numbers].join("; "));
    const tell = () => {
      const strong = document.createElement("strong");
      strong.textContent = head;
      toldEdge.replaceChildren(strong, numbers.length ? ": " + numbers.join(" \u00b7 ") : "");
      told.classList.add("telling"); // and stays in sight while the drawing is
    };
    edge.addEventListener("pointerenter", tell);
    edge.addEventListener("click", tell); // a finger points at nothing
    edge.addEventListener("focus", tell);
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
    toldVariable.replaceChildren();
    if (!chosen) return;
    told.classList.add("telling");
    const strong = document.createElement("strong");
    strong.textContent = chosen.dataset.name;
    toldVariable.append(strong);
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
      toldVariable.append("; ", chip, " ", inOrder(set).map(each => nameOf.get(each)).join(", ") || "none");
    }
  }

  for (const node of nodes) {
    node.setAttribute("role", "button");
    node.setAttribute("aria-label", node.dataset.name);
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

// ---- the slider: fades edges that few draws have, and shows pairs that are not in the graph -------------------------

function bootstrap(edges) {
  const controls = document.getElementById("controls");
  if (!controls) return;
  const slider = document.getElementById("share"), box = document.getElementById("unsure-shown");
  const withShare = edges.filter(edge => "share" in edge.dataset);
  function update() {
    const least = slider.value / 100;
    let faded = 0, more = 0;
    for (const edge of withShare) {
      const enough = Number(edge.dataset.share) >= least, isShown = edge.ownerSVGElement.getClientRects().length > 0;
      if (edge.classList.contains("unsure")) {
        edge.classList.toggle("above", Boolean(box?.checked) && enough);
        more += isShown && edge.classList.contains("above");
      } else {
        edge.classList.toggle("faded", !enough);
        faded += isShown && !enough;
      }
    }
    document.getElementById("share-shown").textContent = `${slider.value} %`;
    slider.setAttribute("aria-valuetext", `${slider.value} per cent`);
    const edgesFaded = `${faded} edge${faded === 1 ? " is" : "s are"} faded`;
    const pairs = `${more} pair${more === 1 ? "" : "s"} that ${more === 1 ? "is" : "are"} not in the graph shown`;
    document.getElementById("share-told").textContent = box?.checked ? `${edgesFaded}, ${pairs}.` : `${edgesFaded}.`;
  }
  slider.addEventListener("input", update);
  box?.addEventListener("change", update);
  document.getElementById("none-hidden")?.addEventListener("change", update);
  controls.hidden = false;
  update();
}

all("table.sortable").forEach(sortable);
all("svg.dag").forEach(interactive);
bootstrap(all("svg.dag .edge"));

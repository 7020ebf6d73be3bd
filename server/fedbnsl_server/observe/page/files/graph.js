// A graph: nodes and arrows where the coordinator has laid them out, a matrix of dots where they are too many.

import { svg } from "./dom.js";

const MARGIN = 12, NODE_HEIGHT = 28, FONT = 13;

// Returns how the drawing is read.
export function drawGraph(host, names, { edges, drawing }) {
  if (!names.length) return "";
  if (!drawing) {
    drawMatrix(host, names.length, edges);
    return "A dot: an edge from the variable of its row to that of its column; blue: a positive weight, orange: a negative one.";
  }
  drawNodes(host, names, edges, drawing);
  return "Wider: heavier; dashed: a negative weight. Variables without an edge are not drawn.";
}

function drawNodes(host, names, edges, { width, height, nodes, lines }) {
  const heaviest = Math.max(1e-12, ...edges.map(([, , weight]) => Math.abs(weight)));
  const told = new Map(edges.map((edge) => [`${edge[0]} ${edge[1]}`, edge]));
  const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 10, markerHeight: 10, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8Z" }));
  const parts = [svg("defs", {}, arrow)];
  for (const [i, j, path] of lines) {
    const [, , weight, directed] = told.get(`${i} ${j}`);
    const line = svg("path", { class: weight < 0 ? "edge minus" : "edge", d: path, "stroke-width": (0.8 + (2.6 * Math.abs(weight)) / heaviest).toFixed(2) });
    if (directed) line.setAttribute("marker-end", "url(#arrow)");
    parts.push(line);
  }
  for (const [k, x, y, wide, label] of nodes) {
    const whole = svg("title"), text = svg("text", { x, y: y + 0.35 * FONT, "text-anchor": "middle" });
    whole.textContent = names[k];
    text.textContent = label;
    parts.push(svg("g", {}, whole, svg("rect", { x: x - wide / 2, y: y - NODE_HEIGHT / 2, width: wide, height: NODE_HEIGHT, rx: 7 }), text));
  }
  const [w, h] = [width + 2 * MARGIN, height + 2 * MARGIN];
  host.replaceChildren(svg("svg", { width: w, height: h, viewBox: `${-MARGIN} ${-MARGIN} ${w} ${h}`, role: "img", "aria-label": `graph of ${names.length} variables with ${edges.length} edges; a table follows` }, ...parts));
}

function drawMatrix(host, n, edges) {
  let canvas = host.querySelector("canvas");
  if (!canvas) {
    canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    host.replaceChildren(canvas);
  }
  const cell = Math.max(1, Math.floor(800 / n));
  canvas.width = canvas.height = n * cell;
  canvas.setAttribute("aria-label", `matrix of ${n} variables with ${edges.length} edges, from the row to the column; a table follows`);
  const style = getComputedStyle(document.documentElement);
  const [plus, minus] = ["--accent", "--minus"].map((name) => style.getPropertyValue(name).trim());
  const pen = canvas.getContext("2d");
  for (const [i, j, weight, directed] of edges) {
    pen.fillStyle = weight < 0 ? minus : plus;
    pen.fillRect(j * cell, i * cell, cell, cell);
    if (!directed) pen.fillRect(i * cell, j * cell, cell, cell);
  }
}

// A graph: nodes and arrows up to a size that can be read, a matrix of dots above.

import { svg } from "./dom.js";

const MOST_NODES = 60;
const WIDTH = 500, HEIGHT = 430, EDGE = 34, STEPS = 60;
let places = new Map();

// Returns how the drawing is read.
export function drawGraph(host, names, edges) {
  const n = names.length;
  if (!n) return "";
  if (n > MOST_NODES) {
    drawMatrix(host, n, edges);
    return "A dot: an edge from the variable of its row to that of its column; blue: a positive weight, orange: a negative one.";
  }
  drawNodes(host, names, edges);
  return "Thicker: heavier; dashed: a negative weight.";
}

// Springs along the edges, repulsion between all; from the last places, so that the picture moves little.
function arrange(n, edges) {
  const at = [...Array(n).keys()].map((k) => {
    const turn = (2 * Math.PI * k) / n;
    return places.get(k) ?? [WIDTH / 2 + 0.38 * WIDTH * Math.cos(turn), HEIGHT / 2 + 0.38 * HEIGHT * Math.sin(turn)];
  });
  const ideal = 0.75 * Math.sqrt((WIDTH * HEIGHT) / n);
  const clamp = (x, high) => Math.min(high - EDGE, Math.max(EDGE, x));
  for (let step = 0, heat = 30; step < STEPS; step++, heat *= 0.94) {
    const push = at.map(([x, y]) => [0.02 * (WIDTH / 2 - x), 0.02 * (HEIGHT / 2 - y)]);
    for (let i = 0; i < n; i++) for (let j = 0; j < i; j++) {
      const dx = at[i][0] - at[j][0] || 0.1, dy = at[i][1] - at[j][1] || 0.1;
      const force = (ideal * ideal) / (dx * dx + dy * dy + 1);
      push[i][0] += dx * force; push[i][1] += dy * force; push[j][0] -= dx * force; push[j][1] -= dy * force;
    }
    for (const [i, j] of edges) {
      const dx = at[i][0] - at[j][0], dy = at[i][1] - at[j][1], force = 0.6 * Math.hypot(dx, dy) / ideal;
      push[i][0] -= dx * force; push[i][1] -= dy * force; push[j][0] += dx * force; push[j][1] += dy * force;
    }
    at.forEach((place, k) => {
      const size = Math.hypot(...push[k]) || 1, go = Math.min(size, heat) / size;
      at[k] = [clamp(place[0] + push[k][0] * go, WIDTH), clamp(place[1] + push[k][1] * go, HEIGHT)];
    });
  }
  places = new Map(at.map((place, k) => [k, place]));
  return at;
}

function drawNodes(host, names, edges) {
  const at = arrange(names.length, edges);
  const heaviest = Math.max(1e-12, ...edges.map(([, , weight]) => Math.abs(weight)));
  const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8Z" }));
  const parts = [svg("defs", {}, arrow)];
  for (const [i, j, weight, directed] of edges) {
    const [x1, y1] = at[i], [x2, y2] = at[j], length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const cut = 8 / length;
    const line = svg("line", {
      class: weight < 0 ? "edge minus" : "edge",
      x1: x1 + (x2 - x1) * cut, y1: y1 + (y2 - y1) * cut, x2: x2 - (x2 - x1) * cut, y2: y2 - (y2 - y1) * cut,
      "stroke-width": (0.8 + (2.6 * Math.abs(weight)) / heaviest).toFixed(2),
    });
    if (directed) line.setAttribute("marker-end", "url(#arrow)");
    parts.push(line);
  }
  names.forEach((name, k) => {
    const [x, y] = at[k];
    parts.push(svg("circle", { cx: x, cy: y, r: 6 }));
    const right = x < WIDTH - 110;
    const text = svg("text", { x: right ? x + 9 : x - 9, y: y - 7, "text-anchor": right ? "start" : "end" });
    text.textContent = name.length > 18 ? `${name.slice(0, 17)}\u2026` : name;
    const whole = svg("title");
    whole.textContent = name;
    text.append(whole);
    parts.push(text);
  });
  host.replaceChildren(svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `graph of ${names.length} variables with ${edges.length} edges; a table follows` }, ...parts));
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

// Line charts over the rounds, as SVG.

import { svg, number } from "./dom.js";

const WIDTH = 420, HEIGHT = 150, LEFT = 62, RIGHT = 8, TOP = 10, BOTTOM = 22;

export function lineChart(host, points, { log = false, label = (y) => number(y), title }) {
  const shown = points.filter(([, y]) => y !== null && (!log || y > 0));
  if (!shown.length) {
    host.replaceChildren();
    return;
  }
  const scale = (y) => (log ? Math.log10(y) : y);
  const back = (v) => (log ? 10 ** v : v);
  const [x0, x1] = [shown[0][0], Math.max(shown.at(-1)[0], shown[0][0] + 1)];
  let low = log ? Infinity : 0, high = log ? -Infinity : 0;
  for (const [, y] of shown) { low = Math.min(low, scale(y)); high = Math.max(high, scale(y)); }
  if (high - low < 1e-12) { high += log ? 0.5 : 1; if (log) low -= 0.5; }
  const atX = (x) => LEFT + ((x - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT);
  const atY = (v) => HEIGHT - BOTTOM - ((v - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const v = low + share * (high - low), y = atY(v);
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }));
    const text = svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" });
    text.textContent = label(back(v));
    parts.push(text);
  }
  for (const [x, anchor] of [[x0, "start"], [x1, "end"]]) {
    const text = svg("text", { x: atX(x), y: HEIGHT - 6, "text-anchor": anchor });
    text.textContent = `round ${x}`;
    parts.push(text);
  }
  // No more points than there are places for them.
  const step = Math.max(1, Math.ceil(shown.length / WIDTH));
  const kept = shown.filter((_, k) => k % step === 0 || k === shown.length - 1);
  const path = kept.map(([x, y], k) => `${k ? "L" : "M"}${atX(x).toFixed(1)} ${atY(scale(y)).toFixed(1)}`).join("");
  parts.push(svg("path", { class: "line", d: kept.length > 1 ? path : `${path}h2` }));
  const last = shown.at(-1);
  const name = `${title}: ${label(last[1])} after round ${last[0]}`;
  host.replaceChildren(svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": name }, ...parts));
}

// The page of one run.

import { act, mayDo } from "./act.js";
import { ago, byId, bytes, clock, dash, itsTimeIs, log, make, number, rows, seconds, setText } from "./dom.js";
import { lineChart } from "./charts.js";
import { drawGraph } from "./graph.js";
import { follow } from "./stream.js";

const OVER = ["finished", "failed", "interrupted", "finished before"];
const here = location.pathname.replace(/\/$/, "");
let about = { variables: [], rounds: 0 };
let history = [];
let graph = null;
let now = null;

function showAbout(content) {
  about = content;
  setText("name", about.name);
  document.title = `${about.name} \u00b7 fedbnsl`;
  const kind = about.private ? "with differential privacy" : "without privacy";
  setText("about", `${about.study ? `study ${about.study}; ` : ""}plan ${about.plan} (${about.digest.slice(0, 12)}), ${kind}; ${about.n_variables} variables, ${about.memberships} sites; run ${about.run}, folder ${about.folder}`);
  if (graph) showGraph(graph);
}

function showNow(content) {
  now = content;
  itsTimeIs(now.time);
  const state = byId("state");
  setText("state", now.state);
  state.className = `badge ${now.state === "finished" ? "good" : ["paused", "failed", "interrupted"].includes(now.state) || now.warnings.length ? "warn" : ""}`;
  const isOver = OVER.includes(now.state);
  if (now.state === "finished") byId("actions").hidden = true;
  const done = now.state === "finished" ? about.rounds : Math.max(0, now.round - (isOver ? 0 : 1));
  byId("progress").max = Math.max(1, about.rounds);
  byId("progress").value = done;
  const left = now.left_s === null || now.left_s === undefined ? "" : `, about ${seconds(now.left_s)} left`;
  const where = isOver ? (now.reason || "the run is over") : now.round ? `round ${now.round} of ${about.rounds} (${now.stage})${left}` : "no round has begun";
  setText("headline", where);
  setText("h", number(now.h));
  setText("edges", now.edges === undefined ? dash : `${now.edges}${now.undirected ? ` (${now.undirected} without direction)` : ""}`);
  setText("bytes", bytes(now.bytes));
  setText("elapsed", seconds(now.elapsed_s));
  setText("round-s", now.round_s ? seconds(now.round_s) : dash);
  showPhase(isOver ? null : now.phase);
  showWarnings();
  showSites();
}

const WAITS = ["rounds", "waiting for sites"];
function showPhase(phase) {
  const works = Boolean(phase) && !WAITS.includes(phase.what);
  byId("phase").hidden = !works;
  if (!works) return;
  const known = phase.share !== null;
  if (known) byId("phase-share").value = phase.share;
  else byId("phase-share").removeAttribute("value");
  const share = known ? `${Math.floor(100 * phase.share)} %, ` : "";
  const left = phase.left_s === null ? "" : `, about ${seconds(phase.left_s)} left`;
  const what = phase.detail ? `${phase.what} (${phase.detail})` : phase.what;
  setText("phase-text", `${what}: ${share}${seconds(phase.elapsed_s)}${left}`);
}

// What whoever looks may ask of the run, at a coordinator with a queue.
const ACTIONS = [["pause", "Pause"], ["stop", "Stop"], ["resume", "Go on"]];
const SURE = { stop: "Stop the run? Its sites are told that it is over; what was learned is kept." };

async function ask(action) {
  if (SURE[action] && !confirm(SURE[action])) return;
  setText("action-note", "");
  try {
    await act(`/api/runs/${here.split("/").pop()}/${action}`);
    setText("action-note", "Asked for; done between two rounds.");
  } catch (error) {
    setText("action-note", `Not done: ${error.message}`);
  }
}

function offerActions() {
  const offered = ACTIONS.filter(([action]) => mayDo(`${action} a run`));
  byId("actions").hidden = !offered.length;
  byId("buttons").replaceChildren(
    ...offered.map(([action, word]) => {
      const button = make("button", { id: action }, word);
      button.addEventListener("click", () => ask(action));
      return button;
    }),
  );
}
offerActions();

let warned = "";
function showWarnings() {
  if (JSON.stringify(now.warnings) === warned) return;
  warned = JSON.stringify(now.warnings);
  byId("warnings").replaceChildren(
    ...now.warnings.map(([text, toDo]) => make("p", { class: "warning" }, make("strong", {}, text), " ", toDo)),
  );
}

function showSites() {
  const wait = now.waited_for || [];
  const sites = now.sites.map((site) => [
    [site.site, "name"],
    [site.state],
    [site.rows ?? dash, "n"],
    [`${ago(site.seen)} ago`],
    [site.last_round || dash, "n"],
    [bytes(site.up), "n"],
    [bytes(site.down), "n"],
    [site.zcdp === null ? dash : number(site.zcdp, 4), "n"],
  ]);
  rows(byId("sites"), sites);
  byId("spent-note").hidden = !now.sites.some((site) => site.zcdp !== null);
  if (wait.length) {
    const named = wait.slice(0, 8).join(", ") + (wait.length > 8 ? ` and ${wait.length - 8} more` : "");
    setText("waiting", `Waited for since ${clock(now.since)} (${ago(now.since)}): ${named}`);
  } else if (now.state === "waiting for sites") {
    setText("waiting", `Waiting since ${clock(now.since)} (${ago(now.since)}): ${now.sites.length} of ${about.memberships} sites have joined`);
  } else {
    setText("waiting", OVER.includes(now.state) ? "" : "Nobody is waited for.");
  }
}

function showGraph(content) {
  graph = content;
  const reading = drawGraph(byId("graph"), about.variables, graph);
  const more = graph.left_out ? `; the ${graph.left_out} lightest are not shown` : "";
  setText("graph-note", `${graph.edges.length} edges beyond ${about.threshold} after round ${graph.round}${more}. ${reading}`);
  const name = (k) => about.variables[k] ?? `#${k}`;
  rows(
    byId("edge-table"),
    graph.edges.slice(0, 300).map(([i, j, weight, directed]) => [[name(i), "name"], [directed ? "\u2192" : dash], [name(j), "name"], [number(weight), "n"]]),
  );
}

function showRounds({ anew, items }) {
  history = anew ? items : [...history, ...items];
  byId("over-rounds").hidden = !history.length;
  const acyclicity = history.map((one) => [one.round, one.h]);
  lineChart(byId("chart-h"), acyclicity, { log: true, title: "h(W)" });
  byId("figure-h").hidden = byId("tile-h").hidden = !acyclicity.some(([, h]) => h > 0); // private rounds have no W
  lineChart(byId("chart-edges"), history.map((one) => [one.round, one.edges]), { title: "edges", label: (y) => number(Math.round(y)) });
  lineChart(byId("chart-bytes"), history.map((one) => [one.round, one.bytes]), { title: "bytes", label: bytes });
  rows(
    byId("rounds"),
    history.slice(-12).reverse().map((one) => [[one.round, "n"], [one.stage], [one.sites, "n"], [number(one.h), "n"], [one.edges, "n"], [bytes(one.bytes), "n"], [seconds(one.s), "n"]]),
  );
}

function showOver({ outcome, report, command }) {
  const section = byId("report");
  if (!section.hidden) return;
  section.hidden = false;
  if (!report) {
    byId("report-note").replaceChildren("The run is over. Its report is made by ", make("code", {}, command), ", where fedbnsl is installed with all that it depends on.");
    close("the run is over");
    return;
  }
  setText("report-note", "The report is being made.");
  const end = (text) => {
    byId("report-note").replaceChildren(text, " Its report is also made by ", make("code", {}, command), ".");
    close("the run is over");
  };
  // First, as a frame does not tell whether it shows a report or an error.
  fetch(`${here}/report`).then(async (answer) => {
    if (!answer.ok) throw new Error(await answer.text());
    const frame = make("iframe", { title: "report of the run", sandbox: "allow-scripts allow-popups", src: `${here}/report` });
    frame.addEventListener("load", () => end(`The run ${outcome}.`));
    section.append(frame);
  }).catch((error) => end(`The run ${outcome}, and there is no report here: ${error.message}.`));
}

const close = follow(`${here}/events`, {
  run: showAbout,
  now: showNow,
  rounds: showRounds,
  graph: showGraph,
  log: (content) => log(byId("log"), content),
  over: showOver,
});
setInterval(() => { if (now && !OVER.includes(now.state)) showSites(); }, 1000);

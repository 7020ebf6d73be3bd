// The list of a coordinator's runs.

import { byId, make, rows } from "./dom.js";
import { follow } from "./stream.js";

const cells = (run) => [
  [run.page ? make("a", { href: `/runs/${encodeURIComponent(run.name)}` }, run.name) : run.name, "name"],
  [run.plan, "name"],
  [run.state],
  [run.progress ? `${run.progress[0]} of ${run.progress[1]}` : "", "n rounds"],
  [run.needs, "name"],
];

// Runs of a study come together, those without one at the end: a line before each study.
const heading = (run, before) =>
  run.study === (before ? before.study : "") ? [] : [[[run.study ? `study ${run.study}` : "no study", "group"]]];

follow("/events", {
  runs(runs) {
    byId("none").hidden = runs.length > 0;
    rows(byId("runs"), runs.flatMap((run, k) => [...heading(run, runs[k - 1]), cells(run)]));
  },
});

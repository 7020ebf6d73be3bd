// The first page of a site's agent: its runs, and those that it does not join.

import { byId, rows, setText } from "./dom.js";
import { follow } from "./stream.js";

function show(agent) {
  setText("name", `agent of ${agent.site}`);
  document.title = `agent of ${agent.site} \u00b7 fedbnsl`;
  setText("about", `coordinator ${agent.coordinator}`);
  setText("state", agent.trouble ? "trouble" : agent.runs.some((run) => run.goes_on) ? "takes part" : "waits for runs");
  byId("state").className = `badge ${agent.trouble ? "warn" : "good"}`;
  setText("trouble", agent.trouble);
  rows(byId("runs"), agent.runs.map((run) => [[run.name, "name"], [run.plan, "name"], [run.state, "name"], [run.round || "", "n rounds"]]));
  byId("runs").querySelectorAll("tr").forEach((row, k) => {
    const link = document.createElement("a");
    link.href = `/runs/${encodeURIComponent(agent.runs[k].key)}`;
    link.textContent = agent.runs[k].name;
    row.firstElementChild.replaceChildren(link);
  });
  setText("none", agent.runs.length ? "" : "None since this agent was started.");
  byId("not-joined").hidden = !agent.waiting.length;
  rows(byId("waiting"), agent.waiting.map(([name, why]) => [[name, "name"], [why, "name"]]));
}

follow("/events", { agent: show });

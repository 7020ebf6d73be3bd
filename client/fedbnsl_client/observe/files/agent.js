// The first page of a site's agent: its runs, and those that it does not join.

import { byId, make, rows, setText } from "./dom.js";
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
    const { key, name } = agent.runs[k];
    row.firstElementChild.replaceChildren(make("a", { href: `/runs/${encodeURIComponent(key)}` }, name));
  });
  setText("none", agent.runs.length ? "" : "None since this agent was started.");
  byId("not-joined").hidden = !agent.waiting.length;
  rows(byId("waiting"), agent.waiting.map(([name, why]) => [[name, "name"], [why, "name"]]));
  byId("waiting").querySelectorAll("tr").forEach((row, k) => {
    const [name, , key] = agent.waiting[k];
    if (!key) return;
    row.firstElementChild.replaceChildren(make("a", { href: `/approve/${encodeURIComponent(key)}` }, name));
  });
}

follow("/events", { agent: show });

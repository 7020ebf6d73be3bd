// The list of a coordinator's runs.

import { byId, make, rows } from "./dom.js";
import { follow } from "./stream.js";

follow("/events", {
  runs(runs) {
    byId("none").hidden = runs.length > 0;
    rows(
      byId("runs"),
      runs.map((run) => [
        [run.progress ? make("a", { href: `/runs/${encodeURIComponent(run.name)}` }, run.name) : run.name, "name"],
        [run.plan, "name"],
        [run.state],
        [run.progress ? `${run.progress[0]} of ${run.progress[1]}` : "", "n"],
        [run.needs, "name"],
      ]),
    );
  },
});

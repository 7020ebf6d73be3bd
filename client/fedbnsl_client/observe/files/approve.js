// The page on which a plan is approved.

import { act, mayDo } from "./act.js";
import { byId, make, setText } from "./dom.js";

const HERE = location.pathname;
let told = null;

// What a person here can judge best; the rest is one click away.
const isOfThisSite = (line) => /^(about this table|secure aggregation|rule |block |no privacy|That holds|Dataset|Whoever| {2}(sites|variables|absent|n_participants|local_solver|privacy\.epsilon) )/.test(line);

async function look() {
  const answer = await fetch(`${HERE}/state.json`);
  if (!answer.ok) {
    setText("state", "not shown");
    setText("refused", await answer.text());
    byId("form").hidden = true;
    return;
  }
  told = await answer.json();
  setText("name", told.plan);
  document.title = `approve ${told.plan}, for run ${told.run} \u00b7 fedbnsl`;
  const where = [told.federation && ` of federation ${told.federation}`, told.site && `; for dataset ${told.dataset} of site ${told.site}`];
  setText("about", `Plan ${told.plan}, digest ${told.digest.slice(0, 12)}\u2026, for run ${told.run}${where.filter(Boolean).join("")}`);
  setText("digest", told.digest);
  setText("cost", told.lines[0] ?? "");
  const [here, more] = [told.lines.slice(1).filter(isOfThisSite), told.lines.slice(1).filter((line) => !isOfThisSite(line))];
  byId("lines").replaceChildren(...here.map((line) => make("li", {}, line)));
  byId("more").replaceChildren(...more.map((line) => make("li", {}, line)));
  setText("refused", told.refused ? `${told.refused} ${told.remedy ?? ""}` : "");
  setText("state", told.refused ? "cannot be approved" : "waits for your word");
  byId("state").className = `badge ${told.refused ? "warn" : ""}`;
  ready();
}

function ready() {
  byId("approve").disabled = !told || Boolean(told.refused) || !mayDo("approve a plan") || byId("typed").value.trim() !== told.site;
}

byId("typed").addEventListener("input", ready);
byId("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  byId("approve").disabled = true;
  setText("note", "Reads the table again.");
  try {
    await act(HERE, { site: byId("typed").value, shown: told.shown, runs: Number(byId("runs").value) });
    setText("state", "approved");
    byId("state").className = "badge good";
    setText("note", "Approved. The agent joins by itself.");
  } catch (error) {
    setText("note", `Not approved: ${error.message}`);
    await look();
  }
});

look();

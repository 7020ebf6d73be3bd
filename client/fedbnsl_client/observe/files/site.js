// The page of a site.

import { act, mayDo } from "./act.js";
import { ago, byId, bytes, clock, dash, itsTimeIs, log, number, rows, setText } from "./dom.js";
import { follow } from "./stream.js";

const SHOWN = 200;
const LAST_MS = 300;
const HERE = location.pathname === "/" ? "" : location.pathname;
let releases = [];
let now = null;

function showSite(site) {
  setText("name", site.site);
  document.title = `${site.site} \u00b7 fedbnsl`;
  setText("about", `coordinator ${site.coordinator}${site.joined ? `; ${site.rows} rows${site.dataset ? ` of dataset ${site.dataset}` : ""}` : ""}`);
  if (!site.joined) return;
  setText("plan", `${site.plan}, ${site.rounds} rounds; digest ${site.digest}`);
  const price = site.price;
  setText("price", price ? `The whole run costs epsilon ${number(price.epsilon, 4)} at delta ${number(price.delta)} against ${price.against}; of a record here, ${number(price.zcdp, 4)} zCDP.` : "Nothing is counted: the run has no privacy, or the table is public.");
  rows(byId("settings"), site.settings.map(([name, value]) => [[name, "name"], [typeof value === "string" ? value : JSON.stringify(value), "name"]]));
}

function showNow(content) {
  now = content;
  itsTimeIs(now.time);
  setText("state", now.away ? "coordinator away" : now.leaving && !now.over ? "leaving" : now.state);
  byId("state").className = `badge ${now.away || now.leaving || now.state === "left" ? "warn" : now.over ? "good" : ""}`;
  setText("releases-n", String(now.n_releases));
  setText("bytes", bytes(now.n_bytes));
  setText("zcdp", now.budget ? number(now.zcdp, 4) : dash);
  setText("spent", now.budget ? `${number(now.budget.spent_epsilon)} of ${number(now.budget.max_epsilon)} at delta ${number(now.budget.delta)}` : dash);
  setText("left", now.budget ? `epsilon ${number(now.budget.left_epsilon)}` : dash);
  setText("budget-note", now.budget ? `Dataset ${now.budget.dataset}, at delta ${number(now.budget.delta)}, over all runs. Epsilons do not add up; zCDP does.${now.budget.lost_zcdp ? ` ${number(now.budget.lost_zcdp, 4)} zCDP of what is spent in all were charged when the ledger was restored, for entries that it has lost; they are of no run that it knows.` : ""}` : "");
  byId("leave").disabled = now.leaving || now.over || !mayDo("leave a run");
  setText("leave-note", now.over ? "" : now.leaving ? "Leaving after the present round." : byId("leave-note").textContent);
  showSince();
  if (now.over) setTimeout(() => close("the run is over here"), LAST_MS); // after what comes with it
}

function showSince() {
  const round = now.round ? `Round ${now.round} (${now.stage}). ` : "";
  setText("headline", now.over ? "" : now.away ? `${round}The coordinator does not answer; the site tries again.` : `${round}The site ${now.state}, since ${clock(now.since)} (${ago(now.since)}).`);
}

function showReleases({ anew, items }) {
  releases = (anew ? items : [...releases, ...items]);
  rows(
    byId("releases"),
    releases.slice(-SHOWN).reverse().map((one) => [
      [one.round, "n"],
      [`${one.what}${one.again ? " (again, the same bytes)" : ""}`, "name"],
      [bytes(one.bytes), "n"],
      [one.zcdp === null ? "not counted" : number(one.zcdp, 4), "n"],
      [clock(one.time)],
    ]),
  );
  setText("more", releases.length > SHOWN ? `The last ${SHOWN} of ${releases.length}.` : releases.length ? "" : "Nothing yet.");
}

byId("leave").addEventListener("click", async () => {
  byId("leave").disabled = true;
  try {
    await act(`${HERE}/leave`);
    setText("leave-note", "Leaving after the present round.");
  } catch (error) {
    byId("leave").disabled = false;
    setText("leave-note", `Not asked: ${error.message}`);
  }
});

const close = follow(`${HERE}/events`, {
  site: showSite,
  releases: showReleases,
  log: (content) => log(byId("log"), content),
  now: showNow,
});
setInterval(() => { if (now && !now.over) showSince(); }, 1000);

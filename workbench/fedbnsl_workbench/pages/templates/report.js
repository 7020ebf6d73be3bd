{% include "drawing.js" %}
// All that this script shows stands on the page without it: in the tables, and in the titles of the drawing.

addEventListener("beforeprint", () => all("details:not(.defaults)").forEach(d => { d.open = true; }));

// ---- tables: a click on a column's head sorts by it, a second one the other way round -------------------------------

function sortable(table) {
  const heads = all("thead th", table);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("n");
      const was = head.getAttribute("aria-sort");
      const falling = was ? was === "ascending" : numeric; // of numbers the largest come first
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      sort(table.tBodies[0], column, falling);
    });
  });
}

function sort(body, column, falling) {
  const groups = []; // a row, and the rows of coefficients that belong to it
  for (const row of body.rows) {
    if (row.classList.contains("coefficients")) groups.at(-1).rows.push(row);
    else groups.push({ key: keyOf(row.cells[column]), rows: [row] });
  }
  groups.sort((a, b) => {
    if (a.key === "" || b.key === "") return (a.key === "") - (b.key === ""); // what is not known comes last
    const order = typeof a.key === typeof b.key && typeof a.key === "number" ? a.key - b.key
      : String(a.key).localeCompare(String(b.key), undefined, { numeric: true });
    return falling ? -order : order;
  });
  body.append(...groups.flatMap(group => group.rows));
}

function keyOf(cell) {
  const text = (cell.dataset.sort ?? cell.textContent).trim();
  if (text === "\u2013" || text === "") return "";
  return Number.isNaN(Number(text)) ? text : Number(text);
}

// ---- the slider: fades edges that few draws have, and shows pairs that are not in the graph -------------------------

function bootstrap(edges) {
  const controls = document.getElementById("controls");
  if (!controls) return;
  const slider = document.getElementById("share"), box = document.getElementById("unsure-shown");
  const withShare = edges.filter(edge => "share" in edge.dataset);
  function update() {
    const least = slider.value / 100;
    let faded = 0, more = 0;
    for (const edge of withShare) {
      const enough = Number(edge.dataset.share) >= least, isShown = edge.ownerSVGElement.getClientRects().length > 0;
      if (edge.classList.contains("unsure")) {
        edge.classList.toggle("above", Boolean(box?.checked) && enough);
        more += isShown && edge.classList.contains("above");
      } else {
        edge.classList.toggle("faded", !enough);
        faded += isShown && !enough;
      }
    }
    document.getElementById("share-shown").textContent = `${slider.value} %`;
    slider.setAttribute("aria-valuetext", `${slider.value} per cent`);
    const edgesFaded = `${faded} edge${faded === 1 ? " is" : "s are"} faded`;
    const pairs = `${more} pair${more === 1 ? "" : "s"} that ${more === 1 ? "is" : "are"} not in the graph shown`;
    document.getElementById("share-told").textContent = box?.checked ? `${edgesFaded}, ${pairs}.` : `${edgesFaded}.`;
  }
  slider.addEventListener("input", update);
  box?.addEventListener("change", update);
  document.getElementById("none-hidden")?.addEventListener("change", update);
  controls.hidden = false;
  update();
}

all("table.sortable").forEach(sortable);
const told = document.getElementById("told");
for (const drawing of all("svg.dag")) {
  const [pointed, chosen] = told.children;
  interactive(drawing, { box: told, pointed, chosen });
}
all(".scripted").forEach(element => { element.hidden = false; });
bootstrap(all("svg.dag .edge"));

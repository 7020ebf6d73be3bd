"""Run folders to report on: small simulated runs of each kind."""

import csv
from html.parser import HTMLParser

import numpy as np

from fedbnsl.errors import InterruptedRunError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise

HARD_NAMES = (
    *("plain", "with space", "<script>alert('x')</script>", "IL-6 [pg/ml] & <b>bold</b>", "Größe Ähre", "白血球数"),
    *(
        "a_very_long_variable_name_that_goes_on_and_on_for_more_than_sixty_characters_1",
        "quo\"te's",
        "$x_1^2$",
        "{{7*7}}",
    ),
    *(
        "a_very_long_variable_name_that_goes_on_and_on_for_more_than_sixty_characters_2",
        "comma, here",
        "&amp;",
        "Ελληνικά",
    ),
    *("WWWWWWWWWWWWWWWWWWWW", "r\\s", "100%", "#hash", "mmmmmmmmmmmmmmm", "нагрузка"),
)

PRIVATE = {
    "local_solver": "dp-pgcd",
    "refit_rounds": 0,
    "local_steps": 4,
    "threshold": 0.1,
    "privacy": {"epsilon": 50.0, "feature_bounds": [50.0]},
}


def make_run(folder, names=HARD_NAMES, *, stop_after=None, seed=5, rows=300, **settings):
    """Simulate three sites (folder/run), with tables and truth (folder/tables); returns the run folder."""
    d = len(names)
    federation = synthesise(d, d * 1.2, 3, rows, seed)
    tables = {f"site-{k + 1}": Dataset(tuple(names), X) for k, X in enumerate(federation.tables)}
    (folder / "tables").mkdir(parents=True)
    for site, table in tables.items():
        _write(folder / "tables" / f"{site}.csv", [names, *table.X.tolist()])
    pairs = np.argwhere(federation.W != 0)
    truth = [["source", "target", "weight"], *([names[i], names[j], float(federation.W[i, j])] for i, j in pairs)]
    _write(folder / "tables" / "truth.csv", truth)

    def watch(status):
        if status.round == stop_after:
            raise InterruptedRunError(f"stopped after round {stop_after}")

    seed = 1 if "privacy" in settings else None
    plan = Plan.parse({"name": "a plan", "rounds": 25, **settings})
    try:
        simulate(plan, tables, folder / "run", watch=watch, noise_seed=seed)
    except InterruptedRunError:
        assert stop_after is not None
    return folder / "run"


def _write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


class Page(HTMLParser):
    """What a page says, read without the program's own templates.

    `tables` by id hold rows of cells (header first), without the units beside names of variables, which are in `units`;
    `text` has all words, `tags` every tag with its attributes.
    """

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tables, self.tags, self.headings, self.labels = {}, [], [], []
        self.units, self._is_name = {}, False
        self._words, self._table, self._cell, self._open = [], None, None, []
        self.feed(html)
        self.text = " ".join(" ".join(self._words).split())

    def rows(self, table):
        """Rows of a table, cells by the head of their column; not the rows of coefficients."""
        header, *rows = self.tables[table]
        return [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)]

    def edges(self):
        """Rows of the table of edges by source and target; weights without their intervals."""
        found = {}
        for row in self.rows("edges"):
            cells = {head.removesuffix(", 95 %"): cell for head, cell in row.items()}
            cells |= {head: cells[head].partition(" ")[0] for head in {"estimate", "without units"} & set(cells)}
            found[row["source"], row["target"]] = cells
        return found

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        self._open.append(tag)
        if tag == "table":
            self._table = self.tables.setdefault(attributes.get("id"), [])
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._cell, self._is_name = [], "name" in attributes.get("class", "").split()
        elif tag == "text":
            self.labels.append("")

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass
        if tag in ("td", "th"):
            self._table[-1].append("".join(self._cell).strip())
            self._cell = None

    def handle_data(self, data):
        inside = self._open[-1] if self._open else ""
        if inside in ("style", "script"):
            return
        self._words.append(data)
        if self._is_name and inside == "small" and self._cell:
            self.units["".join(self._cell).strip()] = data
        elif self._cell is not None:
            self._cell.append(data)
        if inside == "text":
            self.labels[-1] += data
        if inside in ("h1", "h2", "h3"):
            self.headings.append((inside, data.strip()))

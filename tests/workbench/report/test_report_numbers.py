"""The numbers on a report's page, where every one of them is known beforehand."""

import csv
import json
import re
import statistics
from collections.abc import Sequence

import pytest

from fedbnsl_workbench.report.page import write_report
from report_runs import Page, make_run

NAMES = ("A", "B", "C", "D", "E", "F", "G", "H")

# Ten edges between five causes and three effects, nine of them from a smaller to a larger variance; an eleventh rises.
STEEP = [("A", "F"), ("A", "G"), ("A", "H"), ("B", "F"), ("B", "G"), ("B", "H"), ("C", "F"), ("C", "G"), ("C", "H")]
FALLS, RISES = ("D", "F"), ("E", "F")

# Mean and standard deviation of each variable. A, B and E lie further from zero than a tenth of the deviation, A and E
# below it. Against the variance it would be C alone, without the sign B alone, against a tenth of the unit D as well.
SCALES = {
    "A": (-2.0, 5.0),
    "B": (0.3, 2.0),
    "C": (0.04, 0.5),
    "D": (1.0, 40.0),
    "E": (-0.5, 1.5),
    "F": (0.0, 10.0),
    "G": (0.0, 10.5),
    "H": (0.0, 11.0),
}
VARIANCES = {"A": 3.0, "B": 2.0, "C": 0.5, "D": 1.0, "E": 1.5, "F": 4.0, "G": 2.5, "H": 1.25}
ROUNDS = 5


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """A run of five rounds, the last of them the refit, to write other numbers over."""
    return make_run(tmp_path_factory.mktemp("numbers"), NAMES, rows=60, rounds=ROUNDS - 1)


class Made:
    """A copy of the run with other edges, and whatever is changed before `page`."""

    def __init__(self, run, folder, monkeypatch):
        self.folder, self.truth, self.figures = folder, None, []
        self.result = json.loads((run / "result.json").read_text(encoding="utf-8"))
        self.lgbn = json.loads((run / "lgbn.json").read_text(encoding="utf-8"))
        for name in ("plan.toml", "weights.csv"):
            (folder / name).write_bytes((run / name).read_bytes())
        self.learn(STEEP)

        def as_svg(figure):
            self.figures.append(figure)
            return "<svg></svg>"

        monkeypatch.setattr("fedbnsl_workbench.report.charts.as_svg", as_svg)

    def learn(self, edges):
        self.result["edges"] = [{"source": source, "target": target, "weight": 1.0} for source, target in edges]

    def true(self, edges):
        self.truth = self.folder / "truth.csv"
        write_table(self.truth, [("source", "target"), *edges])

    def page(self, **options):
        (self.folder / "result.json").write_text(json.dumps(self.result), encoding="utf-8")
        (self.folder / "lgbn.json").write_text(json.dumps(self.lgbn), encoding="utf-8")
        path = write_report(self.folder, truth=self.truth, out=self.folder / "page.html", **options)
        html = path.read_text(encoding="utf-8")
        page = Page(html)
        paragraphs = re.findall(r'<p class="caution">(.*?)</p>', html, re.DOTALL)
        page.cautions = [re.sub(r"<[^>]*>", "", words) for words in paragraphs]
        return page

    def lines(self, beginning):
        """The line of that label in a chart that has one: (x, y)."""
        (found,) = (
            line
            for figure in self.figures
            for axes in figure.axes
            for line in axes.get_lines()
            if str(line.get_label()).startswith(beginning)
        )
        return list(found.get_xdata()), list(found.get_ydata())


def write_table(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture
def made(simulated, tmp_path, monkeypatch):
    return Made(simulated, tmp_path, monkeypatch)


@pytest.fixture
def tables(tmp_path):
    """Two tables of five and three rows which together have these means and standard deviations, and alone do not."""
    base = [-1.3, 0.4, 2.2, -0.1, 0.9, -2.5, 0.7, -0.3]
    centre, unit = statistics.mean(base), statistics.pstdev(base)
    columns: list[Sequence[float]] = []
    for mean, deviation in SCALES.values():
        columns.append([mean + deviation * (x - centre) / unit for x in base])
    rows = list(zip(*columns, strict=True))
    folder = tmp_path / "tables"
    folder.mkdir()
    write_table(folder / "site-1.csv", [NAMES, *rows[:5]])
    write_table(folder / "site-2.csv", [NAMES, *rows[5:]])
    return folder


def numbers(text, pattern):
    found = re.findall(pattern, text)
    assert len(found) == 1, (pattern, found)
    return found[0]


def test_residual_variances_are_named_from_the_lowest_to_the_highest(made):
    for name, value in VARIANCES.items():
        made.lgbn["cpds"][name]["variance"] = [value]
    page = made.page()
    between = r"variances lie between ([\d.]+) \((\w)\) and ([\d.]+) \((\w)\).{0,40}ratio of ([\d.]+)"
    low, least, high, most, ratio = numbers(page.text, between)
    assert (float(low), least, float(high), most, float(ratio.rstrip("."))) == (0.5, "C", 4.0, "F", 8.0)
    shown = [row for rows in page.tables.values() for row in rows if len(row) == 2 and row[0] in VARIANCES]
    by_size = sorted(VARIANCES, key=lambda name: -VARIANCES[name])
    assert [(name, float(value)) for name, value in shown] == [(n, VARIANCES[n]) for n in by_size]


def test_scales_are_those_of_all_rows_of_all_tables(made, tables):
    page = made.page(data=tables)
    shown = {name: (float(mean), float(deviation)) for name, mean, deviation in page.tables["scales"][1:]}
    assert list(shown) == list(NAMES)
    for name, (mean, deviation) in SCALES.items():
        # With n - 1 below the line each deviation would be 7 % larger.
        assert shown[name] == (pytest.approx(mean, abs=1e-12), pytest.approx(deviation, rel=1e-3))
    assert float(numbers(page.text, r"largest standard deviation is ([\d.]+) times")) == pytest.approx(40.0 / 0.5)
    assert numbers(page.text, r"(\d+) rows? in (\d+) tables?") == ("8", "2")


def test_a_variable_is_off_centre_by_its_mean_over_its_deviation_on_either_side_of_zero(made, tables):
    assert numbers(made.page(data=tables).text, r"(\d+) variables? [^.]{0,40}\bmean\b") == "3"


@pytest.mark.parametrize(
    ("edges", "shown", "warned"),
    [
        ([*STEEP, FALLS], "0.90", False),
        ([*STEEP, FALLS, RISES], "0.91", True),
        (STEEP, "1.00", True),
        ([FALLS], "0.00", False),
        ([RISES, FALLS], "0.50", False),
    ],
)
def test_variances_that_give_the_order_away_are_a_caution_above_nine_tenths(made, tables, edges, shown, warned):
    made.learn(edges)
    page = made.page(data=tables)
    said = re.findall(r"[Vv]arsortability[^.]{0,40} is (?:<strong>)?\s*([\d.]+\d)", page.text)
    assert set(said) == {shown}
    cautions = [words for words in page.cautions if "arsortability" in words]
    assert len(cautions) == warned
    assert all(shown in words for words in cautions)


def dense():
    return [(a, b) for a in NAMES for b in NAMES if a < b]


@pytest.mark.parametrize(
    ("learned", "true", "no_better"),
    [
        # As learned; SHD 0.
        (STEEP, STEEP, False),
        # One right and one reversed, SHD 1: the empty graph has 2.
        ([("A", "F"), ("B", "G")], [("A", "F"), ("G", "B")], False),
        # One right, one needless, one missing, SHD 2: level with the empty graph, better than random pairs.
        ([("A", "F"), ("B", "G")], [("A", "F"), ("C", "H")], True),
        # 1 right, 9 reversed, SHD 27: better than the empty graph's 28, but half of any ten edges is right by chance.
        ([("A", "B"), *((b, a) for a, b in dense()[5:14])], dense(), True),
        # Nothing in common.
        (STEEP, [("A", "B")], True),
    ],
)
def test_a_run_is_called_no_better_than_chance_only_when_it_is_so(made, learned, true, no_better):
    made.learn(learned)
    made.true(true)
    page = made.page()
    assert any(re.search("no better", words) for words in page.cautions) == no_better
    scores = {row[0]: row[1:] for row in page.tables["scores"][1:]}
    right = len(set(learned) & set(true))
    turned = len({(b, a) for a, b in learned} & set(true))
    missing = len(true) - right - turned
    extra = len(learned) - right - turned

    def row(beginning):
        (cells,) = (cells for label, cells in scores.items() if label.startswith(beginning))
        return cells

    assert row("SHD")[:2] == [str(missing + extra + turned), str(len(true))]
    assert row("edges")[:2] == [str(len(learned)), "0"]
    assert [row(name)[0] for name in ("missing", "extra", "reversed")] == [str(n) for n in (missing, extra, turned)]
    assert row("share of true")[0] == f"{right / len(true):.2f}"
    assert row("share of learned")[0] == f"{1 - right / len(learned):.2f}"
    drawn = row("edges")[2].partition(" ")[0]
    assert float(drawn) == len(learned), "random graphs are as dense"


def test_random_graphs_are_shown_with_their_mean_and_deviation(made):
    made.learn([("A", "B")])
    made.true([("A", "B")])
    scores = {row[0].split(":")[0]: row[1:] for row in made.page().tables["scores"][1:]}
    # One random edge of eight variables: right one time in 56 (SHD 0), turned one time in 56 (SHD 1), else SHD 2.
    mean, deviation = map(float, scores["SHD"][2].split(" ± "))
    outcomes = [0, 1] + [2] * 54
    assert mean == pytest.approx(statistics.mean(outcomes), abs=0.06)
    assert deviation == pytest.approx(statistics.pstdev(outcomes), abs=0.1)


def test_seconds_of_the_sites_are_not_taken_for_the_coordinator_s(made):
    local, overall = [1.0, 2.0, 4.0, 8.0, 16.0], [0.25, 0.5, 0.125, 0.0625, 0.75]
    for entry, mine, theirs in zip(made.result["rounds"], local, overall, strict=True):
        entry["local_s"], entry["global_s"] = mine, theirs
    made.result["seconds"]["total"] = 47.25
    page = made.page()
    assert made.lines("local") == ([1, 2, 3, 4, 5], local)
    assert made.lines("global") == ([1, 2, 3, 4, 5], overall)
    (label,) = (a["aria-label"] for _, a in page.tags if a.get("aria-label", "").startswith("Seconds"))
    assert float(numbers(label, r"([\d.]+) s local")) == 31.0
    assert float(numbers(label, r"([\d.]+) s global")) == pytest.approx(1.6875, abs=0.01)
    assert "47.25 s in all" in page.text


def test_bytes_are_those_of_their_site_and_direction(made):
    sites = list(made.result["sites"])
    for k, site in enumerate(sites):
        for t, entry in enumerate(made.result["rounds"]):
            up, down = 1000 * (k + 1), 100_000 * (k + 1) + 10_000 * t
            entry["bytes"][site]["up"]["serialised"], entry["bytes"][site]["down"]["serialised"] = up, down
        way = {"up": {"formula": k + 11, "serialised": k + 21}, "down": {"formula": k + 31, "serialised": k + 41}}
        made.result["sites"][site] |= {"bytes": way, "control_bytes": k + 51}
    total = {"up": {"formula": 111, "serialised": 121}, "down": {"formula": 131, "serialised": 141}, "control": 151}
    made.result["bytes"] |= total
    page = made.page()
    header, *rows = page.tables["bytes"]
    assert header == ["site", "up, formula", "up, serialised", "down, formula", "down, serialised", "control"]
    wanted = [[site, *(str(k + start) for start in (11, 21, 31, 41, 51))] for k, site in enumerate(sites)]
    assert rows == [*wanted, ["all", "111", "121", "131", "141", "151"]]
    # In kB: over the sites by direction, then over the directions by site.
    assert made.lines("up")[1] == pytest.approx([6.0] * ROUNDS)
    assert made.lines("down")[1] == pytest.approx([600.0 + 30.0 * t for t in range(ROUNDS)])
    for k, site in enumerate(sites):
        assert made.lines(site)[1] == pytest.approx([101.0 * (k + 1) + 10.0 * t for t in range(ROUNDS)])


def test_contributions_are_counted_site_by_site(made):
    first, second, third = made.result["sites"]
    there = {first: {1, 2, 3, 4, 5}, second: {1, 3}, third: {5}}
    for entry in made.result["rounds"]:
        entry["contributed"] = [site for site, rounds in there.items() if entry["round"] in rounds]
    for k, site in enumerate(there):
        made.result["sites"][site]["n_samples"] = 100 + k
    page = made.page()
    shown = {row[0]: (row[1], row[2], row[-1]) for row in page.tables["contributions"][1:]}
    assert shown == {
        first: ("100", "5 of 5", "none"),
        second: ("101", "2 of 5", "2, 4\u20135"),
        third: ("102", "1 of 5", "1\u20134"),
    }
    assert numbers(page.text, r"(\d+) sites? of (\d+) missed") == ("2", "3")
    bars = [(a["x"], a["width"]) for tag, a in page.tags if tag == "rect" and "x" in a and a.get("fill") == "#0072b2"]
    assert bars == [("0", "5"), ("0", "1"), ("2", "1"), ("4", "1")]

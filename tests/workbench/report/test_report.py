"""The report's page against the files of the run, read by other means."""

import csv
import itertools
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from command_line import run_command
from fedbnsl.errors import DataError, ResultError
from fedbnsl.graphs.graph import extract_dag, threshold
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_server.results.outlier_scores import outliers
from fedbnsl_server.results.sentences import in_words
from fedbnsl_server.results.unused import unused_notes
from fedbnsl_workbench.pages.render import breakable
from fedbnsl_workbench.report.charts import residual_variances
from fedbnsl_workbench.report.history import settings
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.run_files import read_run
from fedbnsl_workbench.report.threshold_path import acyclic_edges
from report_runs import HARD_NAMES, PRIVATE, Page, make_run

COMPARED = ("verdict", "estimate", "truth", "difference")


@pytest.fixture
def plain_charts(monkeypatch):
    """Charts take most of the time of a page."""
    monkeypatch.setattr("fedbnsl_workbench.report.charts.as_svg", lambda figure: "<svg></svg>")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def private_run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("private"), rows=2000, **PRIVATE)


@pytest.fixture(scope="module")
def page(run):
    """With truth and tables."""
    tables = run.parent / "tables"
    path = write_report(run, truth=tables / "truth.csv", data=tables, out=run.parent / "page.html")
    return Page(path.read_text(encoding="utf-8"))


def edges_of(run):
    with (run / "edges.csv").open(encoding="utf-8", newline="") as file:
        return {(row["source"], row["target"]): float(row["weight"]) for row in csv.DictReader(file)}


def truth_of(run):
    with (run.parent / "tables" / "truth.csv").open(encoding="utf-8", newline="") as file:
        return {(row["source"], row["target"]): float(row["weight"]) for row in csv.DictReader(file)}


def _without_header(run):
    """Tables whose names loadtxt cannot mistake."""
    for path in sorted((run.parent / "tables").glob("site-*.csv")):
        yield ["x", *path.read_text(encoding="utf-8").splitlines()[1:]]


def shown(run, **options):
    path = write_report(run, out=run.parent / "shown.html", **options)
    return Page(path.read_text(encoding="utf-8"))


def test_the_table_has_every_learned_edge_and_its_weight(run, page):
    edges = edges_of(run)
    assert len(edges) > 10
    estimates = {ends: row["estimate"] for ends, row in page.edges().items()}
    assert estimates == {edge: f"{weight:+.3f}" for edge, weight in edges.items()}
    assert len(page.tables["edges"]) == len(edges) + 1


@pytest.mark.usefixtures("plain_charts")
def test_verdicts_truths_and_differences_are_those_of_a_recount(tmp_path, run):
    learned = edges_of(run)
    a, b, c = list(learned)[:3]
    # A truth that has one learned edge, the reverse of another, lacks the rest, and has one more.
    free = next(
        (s, t) for s in HARD_NAMES for t in HARD_NAMES if s != t and (s, t) not in learned and (t, s) not in learned
    )
    truth = {a: 1.25, (b[1], b[0]): -2.0, free: 0.5}
    path = tmp_path / "truth.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["source", "target", "weight"], *([*edge, w] for edge, w in truth.items())])
    page = shown(run, truth=path)
    rows = {ends: [row[head] for head in COMPARED] for ends, row in page.edges().items()}
    assert rows[a] == ["correct", f"{learned[a]:+.3f}", "+1.250", f"{learned[a] - 1.25:+.3f}"]
    assert rows[b] == ["reversed", f"{learned[b]:+.3f}", "\u2013", "\u2013"]
    assert rows[c] == ["extra", f"{learned[c]:+.3f}", "\u2013", "\u2013"]
    assert [row[0] for row in rows.values()].count("extra") == len(learned) - 2
    (missing,) = page.rows("missing-edges")
    assert [missing[head] for head in ("source", "target", "verdict", "truth")] == [*free, "missing", "+0.500"]
    scores = {row[0]: row[1:] for row in page.tables["scores"][1:]}
    assert scores["extra"][0] == str(len(learned) - 2)
    assert scores["SHD: edges to add, remove or reverse"][:2] == [str(len(learned)), "3"]
    drawn = [
        attributes["class"] for tag, attributes in page.tags if tag == "g" and "edge" in attributes.get("class", "")
    ]
    assert sorted(drawn) == sorted(
        ["edge correct", "edge reversed", "edge missing", *["edge extra"] * (len(learned) - 2)]
    )


def test_names_with_markup_stay_words(run, page):
    assert [tag for tag, _ in page.tags].count("script") == 1, "only the page's own"
    assert not any(tag == "b" for tag, _ in page.tags)
    cells = {cell for row in page.tables["scales"] for cell in row}
    assert set(HARD_NAMES) <= cells
    assert "{{7*7}}" in page.text


def test_every_drawn_variable_has_a_label_and_the_others_are_listed(run, page):
    linked = {name for edge in {**edges_of(run), **truth_of(run)} for name in edge}
    nodes = [attributes for tag, attributes in page.tags if tag == "g" and attributes.get("class") == "node"]
    assert len(nodes) == len(linked)
    short = {name for name in linked if len(name) <= 24}
    assert short <= set(page.labels)
    for name in set(HARD_NAMES) - linked:
        assert name in page.text.split("not drawn:")[1].split("Edges")[0]


def test_an_estimate_is_the_mean_coefficient_beside_all_parents_that_were_refitted(run, page):
    sentence = "on the graph of all raw weights above 0.05 (refit_threshold). Edges whose coefficient is at most 0.3"
    assert sentence in page.text
    assert "strongest" not in page.text
    with (run / "weights.csv").open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    W = np.array([[float(x) for x in row[1:]] for row in rows])
    refitted = extract_dag(np.abs(W) > 0.05, W)[0]
    cut = 0
    tables = [np.loadtxt(path, delimiter=",", skiprows=1) for path in _without_header(run)]
    for (source, target), weight in edges_of(run).items():
        i, j = HARD_NAMES.index(source), HARD_NAMES.index(target)
        parents = np.flatnonzero(refitted[:, j])
        cut += len(parents) - sum(edge[1] == target for edge in edges_of(run))
        found = [np.linalg.lstsq(X[:, parents], X[:, j], rcond=None)[0][parents.tolist().index(i)] for X in tables]
        assert weight == pytest.approx(np.mean(found), rel=1e-4)
    assert cut > 0, "else the sentence is not put to the test"


def test_bytes_and_rounds_are_those_of_the_result(run, page):
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    _, *rows, total = page.tables["bytes"]
    for row in rows:
        of = result["sites"][row[0]]
        wanted = [of["bytes"][way][kind] for way in ("up", "down") for kind in ("formula", "serialised")]
        assert [int(cell.replace(",", "")) for cell in row[1:]] == [*wanted, of["control_bytes"]]
    assert int(total[2].replace(",", "")) == result["bytes"]["up"]["serialised"]
    assert page.tables["contributions"][1][2] == f"{len(result['rounds'])} of {len(result['rounds'])}"


@pytest.mark.usefixtures("plain_charts")
def test_a_missed_round_is_seen(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    result = json.loads((copy / "result.json").read_text(encoding="utf-8"))
    for k in (2, 3, 4, 9):
        result["rounds"][k]["contributed"].remove("site-2")
    (copy / "result.json").write_text(json.dumps(result), encoding="utf-8")
    row = next(row for row in shown(copy).tables["contributions"] if row[0] == "site-2")
    assert row[-1] == "3\u20135, 10"
    assert row[2] == f"{len(result['rounds']) - 4} of {len(result['rounds'])}"


@pytest.mark.usefixtures("plain_charts")
def test_a_warning_at_the_head_is_not_told_again_among_the_cautions(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    result = json.loads((copy / "result.json").read_text(encoding="utf-8"))
    odd = {"largest": 50.0, "round": 2, "kind": "admm", "rounds_above_limit": 1, "variables": HARD_NAMES[:1]}
    result["influence"] = {"limit": 6.0, "unknown_because": "", "sites": {"site-2": odd}}
    result["unused"] = [{"variable": HARD_NAMES[0], "level": None, "why": "constant"}]
    told = in_words([*outliers(result["influence"]), *unused_notes(result["unused"])])
    result["warnings"] += told
    (copy / "result.json").write_text(json.dumps(result), encoding="utf-8")
    page = shown(copy)
    assert [page.text.count(sentence[1:]) for sentence in told] == [1, 1]


def test_settings_that_differ_are_told_from_defaults(run, page):
    assert {row[0]: row[1:3] for row in page.tables["settings"][1:]} == {
        "name": ["a plan", "default"],
        "rounds": ["25", "80"],
    }


def test_variables_of_which_nothing_is_said_share_a_row_of_the_settings():
    described = Dictionary.model_validate({"a": {}, "b": {}, "c": {"kind": "binary", "levels": ["no", "yes"]}})
    plan = Plan.load("standard").with_dictionary(described, origin="here")
    rows = {row["name"]: row["value"] for row in settings(SimpleNamespace(plan=plan))}
    assert rows["dictionary"] == "as numbers, with nothing else said: a, b"
    assert "levels" in rows["dictionary.c"]
    assert "{}" not in rows.values()


def test_nothing_is_fetched(run, page):
    assert 100_000 < (run.parent / "page.html").stat().st_size < 1_500_000
    for tag, attributes in page.tags:
        for key in ("src", "href", "xlink:href", "data"):
            value = attributes.get(key) or "#"
            assert value.startswith(("#", "data:")), (tag, attributes)


def test_headings_come_in_order_and_drawings_have_words(page):
    levels = [int(tag[1]) for tag, _ in page.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for tag, attributes in page.tags:
        if tag == "svg" and attributes.get("aria-hidden") != "true":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]


def test_a_run_without_privacy_is_called_so(page):
    assert "This run was not private." in page.text
    assert "privacy" not in page.tables


@pytest.mark.usefixtures("plain_charts")
def test_a_private_run_without_guarantee_says_why(private_run):
    page = shown(private_run)
    assert "There is no privacy guarantee" in page.text
    assert "a simulation keeps no ledger" in page.text
    result = json.loads((private_run / "result.json").read_text(encoding="utf-8"))
    for site, *numbers in page.tables["privacy"][1:]:
        of = result["privacy"]["sites"][site]
        wanted = [of["epsilon"], of["delta"], of["price_zcdp"], of["contributed_zcdp"]]
        assert [float(x) for x in numbers] == pytest.approx(wanted, rel=1e-2)
    assert "This run has no residual variances. lgbn.json was not written: it needs" in page.text
    assert result["not_written"]["lgbn.json"].endswith("unknown: releasing them would cost privacy")
    assert not (private_run / "lgbn.json").exists(), "no reader takes a network without variances"


@pytest.mark.usefixtures("plain_charts")
def test_the_guarantee_is_quoted_word_for_word(private_run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(private_run, copy)
    result = json.loads((copy / "result.json").read_text(encoding="utf-8"))
    result["privacy"] |= {"guarantee": "Every table is protected.", "no_guarantee_because": []}
    result["manifest"]["private"], result["warnings"] = True, []
    (copy / "result.json").write_text(json.dumps(result), encoding="utf-8")
    page = shown(copy)
    assert "Guarantee. Every table is protected." in page.text
    assert "ε = 50" in page.text
    assert "no privacy guarantee" not in page.text


@pytest.mark.usefixtures("plain_charts")
def test_a_private_page_is_the_same_whatever_the_tables_hold(private_run, tmp_path):
    bare, full = tmp_path / "a" / "run", tmp_path / "b" / "run"
    for copy in (bare, full):
        shutil.copytree(private_run, copy)
    shutil.copytree(private_run.parent / "tables", full / "data")
    (full / "data" / "truth.csv").unlink()
    (full / "sites" / "site-1").mkdir(parents=True)
    (full / "sites" / "site-1" / "personal.csv").write_text("secret", encoding="utf-8")
    pages = [write_report(copy).read_text(encoding="utf-8") for copy in (bare, full)]
    assert pages[0] == pages[1]
    with_tables = shown(full, data=full / "data")
    assert "This part is computed from the tables" in with_tables.text


@pytest.mark.usefixtures("plain_charts")
def test_a_demo_is_compared_with_the_truth_that_it_wrote(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.copytree(run.parent / "tables", copy / "data")
    page = shown(copy)
    assert "verdict" in page.tables["edges"][0]
    assert "Varsortability in the learned graph is" in page.text


@pytest.mark.usefixtures("plain_charts")
def test_without_tables_nothing_of_them_is_said(run):
    page = shown(run)
    assert "scales" not in page.tables
    assert "computed from the tables" not in page.text


@pytest.mark.usefixtures("plain_charts")
def test_an_interrupted_run_is_shown_as_it_stood(tmp_path):
    page = shown(make_run(tmp_path, stop_after=4))
    assert ("h2", "What to be careful about") in page.headings
    assert "This run did not finish: stopped after round 4. What" in page.text
    assert "rounds 4 of 26 edges" in page.text
    assert "An estimate is the raw consensus weight, shrunk towards zero by the L1 penalty" in page.text
    assert (
        "lgbn.json was not written: it needs the residual variances, which are unknown: the run ended before its refit"
        in page.text
    )


@pytest.mark.usefixtures("plain_charts")
def test_a_truth_without_edges_is_matched_best_by_the_empty_graph(run, tmp_path):
    (tmp_path / "truth.csv").write_text("source,target\n", encoding="utf-8")
    page = shown(run, truth=tmp_path / "truth.csv")
    assert "The lowest SHD on this curve is 0, at tau = " in page.text
    assert "which leaves no edge: the empty graph" in page.text


@pytest.mark.usefixtures("plain_charts")
def test_sid_is_nought_of_the_truth_itself_and_one_for_a_single_lacking_edge(run, tmp_path):
    label = "SID: effects between pairs that the graph gets wrong"
    truth = tmp_path / "truth.csv"

    def row(*edges):
        with truth.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["source", "target"], *edges])
        return next(row[1:] for row in shown(run, truth=truth).tables["scores"] if row[0] == label)

    assert row(*edges_of(run))[::2] == ["0", "\u2013"]
    a, b, c = HARD_NAMES[:3]
    assert row((a, b))[1] == "1"
    assert row((a, b), (b, c), (c, a)) == ["\u2013"] * 3


@pytest.mark.usefixtures("plain_charts")
def test_a_run_without_edges_says_so(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    result = json.loads((copy / "result.json").read_text(encoding="utf-8"))
    result["edges"] = []
    (copy / "result.json").write_text(json.dumps(result), encoding="utf-8")
    page = shown(copy)
    assert "There is no edge to draw." in page.text
    assert f"No edge among {len(HARD_NAMES)} variables exceeded the threshold" in page.text


@pytest.mark.parametrize("file", ["weights.csv", "plan.toml", "lgbn.json", "result.json"])
@pytest.mark.parametrize("text", [None, "]damaged,[", ""])
def test_a_damaged_file_is_named(file, text, run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / file).unlink()
    if text is not None:
        (copy / file).write_text(text, encoding="utf-8")
    if (file, text) == ("plan.toml", ""):
        return  # an empty plan is the default one
    with pytest.raises(ResultError, match=re.escape(file)):
        read_run(copy)


@pytest.mark.usefixtures("plain_charts")
def test_the_command_writes_into_the_run_folder_and_again(run, capsys):
    for _ in range(2):
        outcome = run_command(capsys, "report", run)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out == f"wrote {run / 'report.html'}\n"
    assert "With private tables, do not share" in " ".join(run_command(capsys, "report", "--help").out.split())
    assert run_command(capsys, "report", run.parent).code == ResultError.exit_code


@pytest.mark.usefixtures("plain_charts")
def test_page_and_terminal_say_that_a_page_holds_what_tables_told(run, tmp_path, capsys):
    copy, box = tmp_path / "run", "This page holds means and standard deviations computed from the tables."
    shutil.copytree(run, copy)
    tables = run.parent / "tables"
    outcome = run_command(capsys, "report", copy, "--data", tables)
    assert (outcome.code, outcome.out) == (0, f"wrote {copy / 'report.html'}\n")
    held = f"caution: the page holds means and standard deviations computed from the tables in {tables};"
    assert outcome.err.startswith(held)
    head = Page((copy / "report.html").read_text(encoding="utf-8")).text.split("variables", 1)[0]
    assert box in head, "right under the title"
    # Tables that lie in the folder are taken for private ones, unless the run notes that it drew them.
    shutil.copytree(tables, copy / "data")
    assert run_command(capsys, "report", copy).err.startswith("caution: the page holds")
    result = json.loads((copy / "result.json").read_text(encoding="utf-8"))
    result["manifest"]["seeds"]["data"] = 5
    (copy / "result.json").write_text(json.dumps(result), encoding="utf-8")
    assert run_command(capsys, "report", copy).err == ""
    page = shown(copy)
    assert "scales" in page.tables
    assert box not in page.text
    assert run_command(capsys, "report", copy, "--data", tables).err.startswith("caution: the page holds")


@pytest.mark.parametrize("wrong", ["nowhere", "empty", "other columns"])
def test_a_wrong_folder_of_tables_gets_advice_that_fits_a_report(wrong, run, tmp_path, capsys):
    folder = tmp_path / wrong
    if wrong != "nowhere":
        folder.mkdir()
    if wrong == "other columns":
        (folder / "site-1.csv").write_text("p,q\n1,2\n3,4\n", encoding="utf-8")
    outcome = run_command(capsys, "report", run, "--data", folder)
    assert outcome.code == DataError.exit_code
    assert "or leave it out: a report needs no tables" in " ".join(outcome.err.split())
    assert "sent" not in outcome.err
    assert "synth" not in outcome.err


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        ((), "Check the path."),
        (("plan.toml",), "start it again with another --out"),
        (("plan.toml", "run.json"), "end it with Ctrl-C"),
    ],
)
def test_a_run_without_a_result_gets_advice_that_fits_its_kind(files, advice, tmp_path):
    for name in files:
        (tmp_path / name).write_text("", encoding="utf-8")
    with pytest.raises(ResultError, match=r"no result\.json") as caught:
        read_run(tmp_path)
    assert advice in caught.value.remedy


@pytest.mark.parametrize("highest", [6.0, 30.0, 90.0, 3e4])
def test_ticks_of_residual_variances_have_labels_that_keep_apart(highest):
    svg = residual_variances(["a", "b", "c"], [1.0, 0.5 * highest, highest])
    words = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    labels = [float(word) for word in words if re.fullmatch(r"[\d.e+-]+", word)]
    shown = [label for label in labels if 1 <= label <= highest]
    assert 2 <= len(shown) <= 6
    assert all(after >= 1.9 * before for before, after in itertools.pairwise(sorted(shown)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tau", [0.0, 0.3, 1.0])
def test_one_pass_gives_the_graph_of_every_threshold(seed, tau):
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(9, 9)) * (rng.random((9, 9)) < 0.6)
    if seed % 2:
        W = W.round(0)  # many weights alike
    np.fill_diagonal(W, 0)
    wanted, _ = extract_dag(threshold(W, tau), W)
    np.testing.assert_array_equal(acyclic_edges(W) & (np.abs(W) > tau), wanted)
    np.testing.assert_array_equal(acyclic_edges(W, tau), wanted)


@pytest.mark.usefixtures("plain_charts")
def test_more_edges_than_a_person_can_follow_are_listed_and_not_drawn(run, monkeypatch):
    monkeypatch.setattr("fedbnsl_workbench.report.learned.MOST_DRAWN", len(edges_of(run)) - 1)
    text = shown(run).text
    assert "too many edges to draw" in text
    monkeypatch.setattr("fedbnsl_workbench.report.learned.MOST_DRAWN", len(edges_of(run)))
    assert "too many edges to draw" not in shown(run).text


@pytest.mark.usefixtures("plain_charts")
def test_a_cyclic_truth_is_a_caution_that_names_no_folder(run, tmp_path):
    truth = tmp_path / "no-cycle-in-this-name.csv"
    a, b, c = (json.loads((run / "result.json").read_text())["variables"])[:3]
    with truth.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("source", "target"), (a, b), (b, c), (c, a)])
    text = shown(run, truth=truth).text
    assert "The truth has a directed cycle" in text
    assert str(tmp_path) not in text


@pytest.mark.usefixtures("plain_charts")
def test_of_a_truth_over_other_variables_only_those_in_common_are_scored(run, tmp_path):
    learned = edges_of(run)
    (a, b), *others = learned
    path = tmp_path / "truth.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["source", "target", "weight"], [a, b, 1.5], [b, "elsewhere", 2.0]])
    page = shown(run, truth=path)
    rows = {ends: [row[head] for head in COMPARED] for ends, row in page.edges().items()}
    assert rows[a, b] == ["correct", f"{learned[a, b]:+.3f}", "+1.500", f"{learned[a, b] - 1.5:+.3f}"]
    assert {rows[edge][0] for edge in others} == {"unscored"}
    scores = {row[0]: row[1:] for row in page.tables["scores"][1:]}
    assert scores["edges"][0] == "1"
    assert scores["SHD: edges to add, remove or reverse"][:2] == ["0", "1"]
    assert "only in the truth: 'elsewhere'; only in the run: " in page.text
    assert "Of the 1 edge of the truth among the 2 variables in common, 1 was found" in page.text
    assert "unscored: the truth lacks one of the variables" in page.text


def test_a_long_name_is_broken_between_its_words_and_stays_a_text():
    assert breakable("c_reactive.protein") == "c_<wbr>reactive.<wbr>protein"
    assert breakable("a_<b>x</b>_") == "a_&lt;b&gt;x&lt;/<wbr>b&gt;_"
    assert breakable("age") == "age"

"""A lagged graph is drawn in two columns: what was before at the left, each variable beside itself."""

import re
from pathlib import Path

import numpy as np

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.report.dag_drawing import Arrow
from fedbnsl_workbench.report.effects import effect_table
from fedbnsl_workbench.report.lagged_drawing import draw_lagged
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.run_files import read_run
from fedbnsl_workbench.simulate import simulate

NAMES = ("x", "y", "alone", "x@-1", "y@-1", "alone@-1", "sex")
BEFORE = {3: 0, 4: 1, 5: 2, 6: 6}
ARROWS = [
    Arrow(3, 0, "positive", 1.0, "x@-1 to x"),
    Arrow(3, 1, "negative", 0.5, "x@-1 to y"),
    Arrow(0, 1, "positive", 0.5, "x to y"),
    Arrow(3, 4, "positive", 0.5, "past", directed=False),
    Arrow(6, 0, "positive", 0.5, "sex to x"),
    Arrow(1, 3, "missing", 0.0, "only in the truth"),
    Arrow(4, 1, "unsure", 0.0, "y@-1 - y", directed=False, share=0.3),
]


def places(svg: str) -> dict[str, tuple[float, float]]:
    found = re.findall(r'data-name="([^"]+)">.*?<rect x="([-\d.]+)" y="([-\d.]+)" width="([\d.]+)"', svg, re.DOTALL)
    return {name: (float(x) + float(width) / 2, float(y)) for name, x, y, width in found}


def test_a_variable_stands_beside_itself_before_and_nodes_do_not_overlap() -> None:
    at = places(draw_lagged(NAMES, BEFORE, ARROWS, title="t"))
    assert set(at) == {"x", "y", "x@-1", "y@-1", "sex"}, "variables without an edge are not drawn"
    for name in ("x", "y"):
        assert at[f"{name}@-1"][1] == at[name][1]
        assert at[f"{name}@-1"][0] < at[name][0]
    assert abs(at["sex"][0] - at["x@-1"][0]) < 0.2, "pixels"
    assert at["x"][1] < at["y"][1], "a cause stands above its effect"
    assert len({y for _, y in (at["sex"], at["x@-1"], at["y@-1"])}) == 3


def test_each_edge_is_there_once_and_those_of_the_past_are_pale() -> None:
    svg = draw_lagged(NAMES, BEFORE, ARROWS, title="t")
    ends = re.findall(r'data-source="(\d)" data-target="(\d)"', svg)
    assert sorted(ends) == sorted((str(arrow.source), str(arrow.target)) for arrow in ARROWS)
    (pale,) = re.findall(r'<g opacity="0.45"><g class="edge positive" data-source="(\d)" data-target="(\d)"', svg)
    assert pale == ("3", "4")


def test_an_arrow_ends_at_the_side_that_it_comes_from() -> None:
    svg = draw_lagged(NAMES, BEFORE, ARROWS, title="t")
    at = places(svg)
    tips = dict(re.findall(r"<title>([^<]+)</title><path [^>]+><path d=\"M([-\d.]+) ", svg.replace("/>", ">")))
    assert float(tips["x@-1 to x"]) < at["x"][0]
    assert float(tips["x to y"]) > at["y"][0]
    assert float(tips["only in the truth"]) > at["x@-1"][0]


def test_the_page_of_a_lagged_run_has_two_columns(tmp_path: Path) -> None:
    dictionary = Dictionary.model_validate({"t": {"kind": "time", "lags": 1}, "x": {}, "y": {}})
    tables = {}
    for k in range(2):
        rng, X = np.random.default_rng(k), np.zeros((400, 2))
        for t in range(1, 400):
            X[t] = 0.8 * X[t - 1, [0, 0]] + rng.standard_normal(2)
        codes = np.column_stack([X, np.arange(400.0)])
        tables[f"site-{k}"] = Dataset.of_values(
            ["x", "y", "x@-1", "y@-1"], codes, origin="x", dictionary=dictionary, warn=False
        )
    plan = Plan.load("standard").with_settings(n_participants=2, bootstrap=0)
    used = {site: table.complete_cases() for site, table in tables.items()}
    simulate(plan.with_dictionary(dictionary, origin="here"), used, tmp_path)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    at = places(page)
    assert at["x@-1"][0] < at["x"][0]
    assert at["x@-1"][1] == at["x"][1]
    assert "right the present row" in page
    assert "Every learned arrow points down" not in page
    assert "Rows in the order of &#39;t&#39; follow each other in time: beside each row stands the one before." in page
    rows = effect_table(read_run(tmp_path)).rows
    assert not any(row.source in ("x@-1", "y@-1") for row in rows), "what caused them lies further back"

"""The page tells which site has which variables, in how many rows, and which pairs of variables no row has."""

import json
import shutil
from io import StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser
from rich.console import Console

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.store import forget as forgetting
from fedbnsl_server.store.result_file import read_result
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.summary import print_summary
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise
from report_runs import Page

D = 6


def run_of(n_sites: int, out: Path) -> dict[str, Dataset]:
    """X1 has gaps, X5 is absent at the first site and X6 at all others, and the plan says so."""
    federation, drawn = synthesise(D, 5, n_sites, 120, 7), np.random.default_rng(1)
    tables: dict[str, Dataset] = {}
    for k, X in enumerate(federation.tables):
        site = f"site-{k + 1:02}"
        X[drawn.random(len(X)) < 0.2, 0] = np.nan
        lacking = D - 1 if k else D - 2
        X[:, lacking] = np.nan
        tables[site] = Dataset(federation.variables, X, absent=(federation.variables[lacking],))
    absent = {site: list(table.absent) for site, table in tables.items()}
    plan = Plan.load("standard").with_settings(bootstrap=0, n_participants=n_sites, absent=absent)
    simulate(plan, tables, out)
    return tables


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Dataset]]:
    out = tmp_path_factory.mktemp("three") / "run"
    return out, run_of(3, out)


def test_rows_with_a_value_are_counted_by_variable_and_site(three: tuple[Path, dict[str, Dataset]]) -> None:
    out, tables = three
    page = Page(write_report(out).read_text(encoding="utf-8"))
    head, *rows = page.tables["who"]
    assert head == ["variable", *tables, "all sites"]
    counts: dict[str, list[int]] = {}
    for k, name in enumerate(next(iter(tables.values())).variables):
        counts[name] = [int((~np.isnan(table.X[:, k])).sum()) for table in tables.values()]
    lacking = {name: told for name, told in counts.items() if sum(told) < 360}
    assert set(lacking) == {"X1", "X5", "X6"}
    told = {row[0]: row[1:] for row in rows}
    assert told == {name: [*map(str, n), f"{sum(n)} ({100 * sum(n) / 360:.0f} %)"] for name, n in lacking.items()}
    assert "3 other variables have a value in every row" in page.text
    assert "No row has both of X5 and X6" in page.text


def test_a_forgotten_site_is_not_said_to_have_everything(
    three: tuple[Path, dict[str, Dataset]], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(three[0], tmp_path / "run"))
    forgetting.forget(forgetting.held([run], "site-01"), "site-01")
    page = Page(write_report(run).read_text(encoding="utf-8"))
    head, *rows = page.tables["who"]
    assert head == ["variable", "site-02", "site-03", "these sites"]
    assert {row[0]: row[1:] for row in rows}["X6"] == ["0", "0", "0 (0 %)"]
    assert "What 1 forgotten site had is not told" in page.text


def test_head_and_summary_say_how_many_rows_have_no_gap(tmp_path: Path) -> None:
    federation, drawn = synthesise(D, 5, 3, 120, 7), np.random.default_rng(1)
    for X in federation.tables:
        X[drawn.random(len(X)) < 0.2, 0] = np.nan
    complete = sum(int((~np.isnan(X)).all(axis=1).sum()) for X in federation.tables)
    tables = {f"site-{k}": Dataset(federation.variables, X) for k, X in enumerate(federation.tables)}
    simulate(Plan.load("standard").with_settings(bootstrap=0), tables, tmp_path / "run")
    page = Page(write_report(tmp_path / "run").read_text(encoding="utf-8")).text
    assert f"rows, all sites 360, of which {complete} without a missing value" in page
    text = StringIO()
    print_summary(read_result(tmp_path / "run"), tmp_path / "run", Console(file=text, width=300), seconds=1.0)
    assert f"rows used 360 of 360 ({complete} without a missing value), by EM: effective sample size " in (
        text.getvalue()
    )


def test_where_nothing_was_counted_the_plan_tells_who_lacks_what(
    three: tuple[Path, dict[str, Dataset]], tmp_path: Path
) -> None:
    out, tables = three
    kept = out / "result.json"
    before = kept.read_text(encoding="utf-8")
    kept.write_text(json.dumps({**json.loads(before), "gaps": None}), encoding="utf-8")
    try:
        page = Page(write_report(out, out=tmp_path / "page.html").read_text(encoding="utf-8"))
    finally:
        kept.write_text(before, encoding="utf-8")
    assert page.tables["who"] == [
        ["variable", *tables],
        ["X5", "no", "yes", "yes"],
        ["X6", "yes", "no", "no"],
    ]
    assert "No row has both of X5 and X6" in page.text


def test_a_run_without_gaps_has_no_such_table(tmp_path: Path) -> None:
    federation = synthesise(D, 5, 3, 120, 7)
    tables = {f"site-{k}": Dataset(federation.variables, X) for k, X in enumerate(federation.tables)}
    simulate(Plan.load("standard").with_settings(bootstrap=0), tables, tmp_path / "run")
    assert "who" not in Page(write_report(tmp_path / "run").read_text(encoding="utf-8")).tables


@pytest.mark.parametrize("width", [1280, 390])
def test_dots_of_twenty_sites_stand_side_by_side(browser: Browser, tmp_path: Path, width: int) -> None:
    run_of(20, tmp_path / "run")
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(write_report(tmp_path / "run").as_uri())
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    dots = page.locator("#who tbody tr").first.locator(".dot")
    boxes = [dot.bounding_box() for dot in dots.all()]
    assert len(boxes) == 20
    tops, lefts = {box["y"] for box in boxes if box}, [box["x"] for box in boxes if box]
    assert len(tops) == 1
    assert all(right - left > 15.0 for left, right in pairwise(lefts))

"""A study's page: its table of comparisons, with and without numbers of the paper."""

import pytest
from rich.console import Console

from fedbnsl_research.reproduce.study import Comparison, Study, reproduce
from fedbnsl_research.reproduce.study_page import with_spread
from fedbnsl_workbench.pages.chart_files import new_figure
from report_runs import Page


def run(trial):
    return [{"method": "ours", "seed": trial["seed"]}]


def page_of(comparisons, out):
    study = Study(
        name="small",
        title="A small study",
        source="Figure 0",
        claim="Nothing.",
        trials=lambda seeds, quick: [{"seed": seed} for seed in seeds],
        run=run,
        compare=lambda rows: comparisons,
        draw=lambda rows: new_figure(2, 2)[0],
        settings=lambda quick: (),
        quick="",
    )
    reproduce(study, (1,), out, quick=False, jobs=1, console=Console(quiet=True))
    return Page((out / "index.html").read_text(encoding="utf-8"))


def test_numbers_stand_beside_the_papers_with_the_note_under_the_name(tmp_path):
    found = [Comparison("TPR", 0.7, 0.6889, 0.00152, 0.012, "a <note>"), Comparison("SHD", None, 12.0)]
    page = page_of(found, tmp_path)
    assert ("h2", "The paper's numbers and ours") in page.headings
    assert page.tables["comparisons"] == [
        ["what", "paper", "ours", "difference"],
        ["TPRa <note>", "0.7 \u00b1\u00a00.012", "0.689 \u00b1\u00a00.002", "-0.011"],
        ["SHD", "\u2013", "12", "\u2013"],
    ]


def test_without_a_number_of_the_paper_the_table_is_ours_alone(tmp_path):
    page = page_of([Comparison("TPR", None, 0.5, 0.1)], tmp_path)
    assert ("h2", "Our numbers") in page.headings
    assert "The paper shows curves without numbers" in page.text
    assert page.tables["comparisons"] == [["what", "ours"], ["TPR", "0.5 \u00b1\u00a00.1"]]


@pytest.mark.parametrize(
    ("mean", "spread", "shown"),
    [
        (0.6889, 0.00152, "0.689 + 0.002"),
        (0.6889, 0.0346, "0.689 + 0.035"),
        (0.0689, 0.0001, "0.069 + <0.001"),
        (12.345, 1.234, "12.3 + 1.2"),
        (12.345, None, "12.3"),
        (1.5e-8, 2.34e-9, "1.5e-08 + 2.3e-09"),
        (7.0, 0.0, "7 + 0"),
        (0.0, 0.0, "0 + 0"),
        (-0.01149, None, "-0.011"),
        (3, 0.5, "3 + 0.5"),
        (None, None, "\u2013"),
    ],
)
def test_a_spread_has_two_digits_and_none_finer_than_its_mean(mean, spread, shown):
    assert with_spread(mean, spread, "+") == shown

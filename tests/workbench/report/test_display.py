"""What a person sees of a run when it is over."""

import re
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedbnsl.plan.plan import Plan
from fedbnsl_research.reproduce.display import print_comparisons
from fedbnsl_research.reproduce.study import Comparison
from fedbnsl_research.tuning.display import print_ranking
from fedbnsl_research.tuning.ranking import Ranked
from fedbnsl_server.results.result_schema import Verdict
from fedbnsl_workbench.report.summary import print_summary
from fedbnsl_workbench.scoring.metrics import score


def a_result(edges):
    return {
        "edges": [{"source": s, "target": t, "weight": w} for s, t, w in edges],
        "dropped_edges": [],
        "not_written": {},
        "preparation": None,
        "units": {},
        "levels": {},
        "references": {},
        "regressions": [],
        "curves": None,
        "validation": None,
        "hidden_causes": None,
        "taken": {},
        "verdict": Verdict(assumed=[], contradicted=[], directed_by={}).model_dump(),
        "influence": {"limit": 6.0, "unknown_because": "", "sites": {}},
        "rounds": [],
        "warnings": [],
        "privacy": None,
        "bytes": {
            "up": {"formula": 1_500_000, "serialised": 1_000_000},
            "down": {"formula": 250_000, "serialised": 100_500},
        },
        "seconds": {"total": 3.25, "local": 1.0, "global": 2.0},
    }


def summary(result, *, folder, scores=None, width=100):
    text = StringIO()
    print_summary(result, folder, Console(file=text, width=width), scores=scores, seconds=4.5)
    return text.getvalue()


def cells(line):
    return [cell.strip() for cell in re.split("[│┃]", line) if cell.strip()]


def test_the_summary_lists_edges_score_bytes_both_ways_seconds_and_folder(tmp_path):
    estimate, reference = np.zeros((2, 4, 4), dtype=bool)
    estimate[0, 1] = estimate[2, 3] = estimate[0, 3] = True
    reference[0, 1] = reference[3, 2] = reference[1, 2] = reference[1, 3] = True
    text = summary(a_result([("a", "b", 1.5), ("c", "d", -0.25)]), folder=tmp_path, scores=score(estimate, reference))
    rows = [cells(line) for line in text.splitlines()]
    assert "edges learned: 2" in text
    assert ["a", "b", "+1.500"] in rows
    assert ["c", "d", "-0.250"] in rows
    flat = " ".join(text.split())
    assert "SHD 4 of 4 edges (2 missing, 1 extra, 1 reversed)" in flat
    assert "bytes, formula 1.75 MB (1.50 MB up, 250.0 kB down)" in flat
    assert "bytes, serialised 1.10 MB (1.00 MB up, 100.5 kB down)" in flat
    assert "4.5 in all, 3.2 from the first round on" in flat
    assert text.splitlines()[-1] == f"run folder         {tmp_path}"
    assert "cycles" not in text


def test_the_summary_orders_edges_as_the_page_does_and_marks_curves(tmp_path):
    result = a_result([("a", "b", 1.5), ("c", "d", 0.002)])
    result["edges"] = [{**edge, "standardised": edge["weight"]} for edge in result["edges"]]
    result["sites"] = {}
    result["preparation"] = {
        "intercept": "site",
        "missing": "refuse",
        "scale": "pooled",
        "centres": None,
        "scales": dict.fromkeys("abcd", 2),
    }
    result["curves"] = {"effects": [{"source": "c", "target": "d", "spread": 4.0}]}
    rows = [cells(line) for line in summary(result, folder=tmp_path).splitlines()]
    u, line = ["c", "d", "+0.00200", "+0.00200", "2.00"], ["a", "b", "+1.500", "+1.500"]
    assert [row for row in rows if row[:2] in (u[:2], line[:2])] == [u, line]


def test_the_summary_claims_no_score_without_a_truth(tmp_path):
    text = summary(a_result([]), folder=tmp_path)
    assert "SHD" not in text
    assert text.lstrip().startswith("edges learned: 0\n"), "no empty table"


def test_the_summary_says_how_many_edges_were_left_out_to_break_cycles(tmp_path):
    result = {**a_result([("a", "b", 1.0)]), "dropped_edges": [{}, {}]}
    assert re.search(r"cycles +2 weak edges left out to break them", summary(result, folder=tmp_path))


def test_the_summary_repeats_the_warnings_of_the_result(tmp_path):
    result = {**a_result([]), "warnings": ["column [x] looks odd", "h(W) is large"]}
    flat = " ".join(summary(result, folder=tmp_path).split())
    assert "column [x] looks odd" in flat
    assert "h(W) is large" in flat


@pytest.mark.parametrize("width", [40, 80])
def test_the_path_of_the_run_folder_is_never_cut_short(width, tmp_path):
    folder = tmp_path / ("a" * 50) / "[bold]" / ("b" * 50)
    assert summary(a_result([]), folder=folder, width=width).rstrip().endswith(str(folder))


@pytest.mark.parametrize("name", ["dose [mg/l]", "[/x]", "[red]IL-6[/red]", ":smile:", "NF-κB/p65", "a\\"])
def test_names_that_look_like_markup_stay_as_they_are(name, tmp_path):
    text = summary(a_result([(name, "b", 1.0), ("b", name, 1.0)]), folder=tmp_path)
    rows = [cells(line) for line in text.splitlines()]
    assert [name, "b", "+1.000"] in rows
    assert ["b", name, "+1.000"] in rows


def test_a_long_list_of_edges_ends_with_where_to_find_the_rest(tmp_path):
    text = summary(a_result([(f"s{k:03}", "t", 1.0) for k in range(300)]), folder=tmp_path)
    shown = len(set(re.findall(r"s\d{3}", text)))
    assert 10 <= shown < 300
    assert re.search(rf"\.\.\. {300 - shown} more +│ in edges\.csv", text)


def test_a_terminal_of_80_columns_breaks_no_name(tmp_path):
    result = a_result([("creatinine=unknown", "haemoglobin", -2.27), ("pulse", "creatinine=unknown", 12.5)])
    for edge in result["edges"]:
        edge |= {"interval": [0.25, 0.75], "bootstrap": {"adjacent": 1.0, "forward": 0.75, "backward": 0.25}}
    result["units"] = {"haemoglobin": "g/l", "pulse": "1/min"}
    lines = [line for line in summary(result, folder=tmp_path, width=80).splitlines() if "│" in line]
    words = {word for line in lines for cell in line.split("│") for word in cell.split()}
    assert {"creatinine=unknown", "haemoglobin", "(1/min)", "-2.270"} <= words
    assert {len(line) for line in lines} <= set(range(81))


def test_a_narrow_terminal_cuts_no_number(tmp_path):
    text = summary(a_result([("a" * 30, "b" * 30, -12345.678), ("b" * 30, "c" * 30, 0.25)]), folder=tmp_path, width=24)
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in text.splitlines() if "│" in line]
    folded = ["".join(column) for column in zip(*rows, strict=True)]
    assert "…" not in text
    assert folded == ["a" * 30 + "b" * 30, "b" * 30 + "c" * 30, "-12300+0.250"]


def test_a_narrow_terminal_cuts_no_number_of_other_tables(tmp_path):
    """Digits go to the next line of their cell, where a terminal of 40 columns has no room."""
    ranked = Ranked({"lambda1": 0.0123, "threshold": 0.345}, Plan(), 12.3, 4.56, 17.8, 30, 0, 0, 0, 1.23e-05, 98.7, "")
    compared = Comparison("FedSparseBNSL, 12 sites: SHD", 12.345, 23.456, 3.4567, paper_spread=2.3456)

    def shown(width):
        text = StringIO()
        console = Console(file=text, width=width)
        print_ranking([ranked], "shd_double", Path("x"), console)
        print_comparisons([compared], Path("x"), console, quick=False)
        return text.getvalue()

    assert "…" not in shown(40)
    digits = [sorted(filter(str.isdigit, shown(width))) for width in (40, 200)]
    assert digits[0] == digits[1]

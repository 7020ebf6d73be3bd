"""Runs over rows that belong together: what is learned, and that nothing of what tells them apart leaves a site."""

import csv
import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import tomli_w

from fedbnsl.errors import DataError, PlanError, SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.report import guarantee_sentence, price_lines, price_summary
from fedbnsl_client.data.plan_fit import remarks
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import private_moments
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_workbench import localnet
from fedbnsl_workbench.estimator import FedSparseBNSL
from fedbnsl_workbench.network import Network
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import described_by, tables_for

pytestmark = pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")

SITES = 3
FAST = Plan.load("standard").with_settings(n_participants=SITES, bootstrap=0)
VARIABLES: dict[str, dict[str, Any]] = {"x": {}, "y": {}, "z": {}}
ROWS: dict[str, dict[str, Any]] = {"patient": {"kind": "group", "within": "rows"}}
GROUP: dict[str, dict[str, Any]] = {"patient": {"kind": "group"}}
LAGS: dict[str, dict[str, Any]] = {"visit": {"kind": "time", "lags": 1}}


def chains(site: int, patients: int = 60, visits: int = 10) -> tuple[list[str], list[list[object]]]:
    """Rows of patients, shuffled: x -> y, and each of x and y from itself one visit before; z from y before."""
    rng = np.random.default_rng(site)
    rows: list[list[object]] = []
    for p in range(patients):
        x, y, z = 2.0 * rng.standard_normal(3)
        for t in range(visits):
            e = rng.standard_normal(3)
            new_x = 0.9 * x + e[0]
            x, y, z = new_x, 0.5 * y + 0.6 * new_x + e[1], 0.5 * y + e[2]
            rows.append([f"pat{site}q{p}", f"2024-05-{t + 1:02d}", float(x), float(y), float(z)])
    rng.shuffle(rows)  # type: ignore[arg-type]
    return ["patient", "visit", "x", "y", "z"], rows


def repeated(site: int, patients: int = 80, visits: int = 8) -> tuple[list[str], list[list[object]]]:
    """Patients differ: x -> y -> z between them; within a patient, all three vary by themselves."""
    rng = np.random.default_rng(100 + site)
    a = rng.standard_normal((patients, 3))
    level = np.stack([a[:, 0], 0.9 * a[:, 0] + a[:, 1], 0.9 * (0.9 * a[:, 0] + a[:, 1]) + a[:, 2]], axis=1)
    rows: list[list[object]] = []
    for p in range(patients):
        for t in range(visits):
            rows.append([f"pat{site}q{p}", f"2024-05-{t + 1:02d}", *(level[p] + 0.4 * rng.standard_normal(3)).tolist()])
    rng.shuffle(rows)  # type: ignore[arg-type]
    return ["patient", "visit", "x", "y", "z"], rows


def folder(path: Path, make: Any, dictionary: dict[str, dict[str, Any]]) -> Path:
    path.mkdir()
    for k in range(1, SITES + 1):
        header, rows = make(k)
        with (path / f"site-{k}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    (path / "dictionary.toml").write_text(tomli_w.dumps(dictionary), encoding="utf-8")
    return path


def run(data: Path, out: Path, plan: str | Plan = "standard", **settings: Any) -> dict[str, Any]:
    loaded = Plan.load(plan) if isinstance(plan, str) else plan
    loaded = described_by(loaded.with_settings(n_participants=SITES, bootstrap=0, **settings), data)
    files = {f"site-{k}": data / f"site-{k}.csv" for k in range(1, SITES + 1)}
    return simulate(loaded, tables_for(loaded, files), out, noise_seed=1 if loaded.privacy else None)


def edges(result: dict[str, Any]) -> set[tuple[str, str]]:
    return {(edge["source"], edge["target"]) for edge in result["edges"]}


def skeleton(result: dict[str, Any]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in edges(result)}


def test_patients_are_the_records_of_a_run(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", repeated, {**GROUP, "visit": {"kind": "time"}, **VARIABLES})
    result = run(data, tmp_path / "run")
    assert {site["n_samples"] for site in result["sites"].values()} == {80}
    assert skeleton(result) == {frozenset("xy"), frozenset("yz")}
    assert not any("independent" in text for text in result["warnings"])
    left = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert not re.search(rb"pat\dq\d|2024-05", left)


def test_shares_of_levels_are_not_taken_for_zeros_and_ones(tmp_path: Path) -> None:
    """A tenth of the visits of every patient have the event, so that shares vary by little and nobody is rare."""

    def made(site: int) -> tuple[list[str], list[list[object]]]:
        rng = np.random.default_rng(site)
        rows = [[f"p{k // 20}", float(rng.random() < 0.1), *rng.standard_normal(2).tolist()] for k in range(1000)]
        return ["patient", "event", "x", "y"], rows

    event = {"event": {"kind": "binary", "levels": ["0", "1"]}}
    data = folder(tmp_path / "data", made, {**GROUP, **event, "x": {}, "y": {}})
    result = run(data, tmp_path / "run")
    assert "rare_levels" not in result["warning_codes"]
    plan = described_by(FAST, data)
    context = Run(plan, plan.edge_mask(plan.column_names), {"site-1": 50})
    assert not context.indicators.any()
    alone = described_by(FAST, data).with_settings(dictionary={**event, "x": {}, "y": {}})
    assert Run(alone, alone.edge_mask(alone.column_names), {"site-1": 50}).indicators.tolist() == [True, False, False]


def test_rows_as_they_are_raise_a_warning_where_a_plan_counts_them_as_independent(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", repeated, {**ROWS, **VARIABLES})
    result = run(data, tmp_path / "run", "fed-sparse", preparation=FAST.preparation, rounds=3)
    assert {site["n_samples"] for site in result["sites"].values()} == {640}
    (warning,) = (text for text in result["warnings"] if "independent" in text)
    assert warning.startswith("rows of 240 groups count as independent records, which they are not (at site-1, site-2")
    assert "rows_of_groups" in result["warning_codes"]


def lasting(site: int, patients: int = 60, visits: int = 10) -> tuple[list[str], list[list[object]]]:
    """x -> y; of x and of what y has beside it, most lasts; z, which has nothing to do with either, lasts as well."""
    rng = np.random.default_rng(300 + site)
    rows: list[list[object]] = []
    for p in range(patients):
        lasts = rng.standard_normal(3)
        for t in range(visits):
            x, e, z = np.sqrt(0.9) * lasts + np.sqrt(0.1) * rng.standard_normal(3)
            rows.append([f"pat{site}q{p}", f"2024-05-{t + 1:02d}", float(x), float(0.5 * x + e), float(z)])
    rng.shuffle(rows)  # type: ignore[arg-type]
    return ["patient", "visit", "x", "y", "z"], rows


def test_rows_of_a_group_count_as_what_they_are(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", lasting, {**ROWS, **VARIABLES})
    result = run(data, tmp_path / "run")
    assert edges(result) in ({("x", "y")}, {("y", "x")})
    assert "rows_of_groups" not in result["warning_codes"]
    sites = result["influence"]["sites"].values()
    assert max(one["largest"] for one in sites) < result["influence"]["limit"], "no honest site is called an outlier"
    told = result["estimation"]["dependent_rows"]
    assert told["other_rows"] == pytest.approx(9.0, rel=0.01)
    assert told["counted"] == pytest.approx(3 * 600 / (1 + 9 * 0.9**2), rel=0.15)
    assert list(told["icc"].values()) == pytest.approx([0.9] * 3, abs=0.05)
    assert list(told["residual_icc"].values()) == pytest.approx([0.9] * 3, abs=0.05)
    assumed = json.dumps(result["verdict"])
    assert "any two rows of one 'patient' depend on each other alike" in assumed
    (edge,) = result["edges"]
    alone = run(folder(tmp_path / "alone", lasting, VARIABLES), tmp_path / "as if alone")
    (same,) = (one for one in alone["edges"] if {one["source"], one["target"]} == {"x", "y"})
    assert edge["standard_error"] / same["standard_error"] == pytest.approx(np.sqrt(1 + 9 * 0.9**2), rel=0.1)
    told = Network.load(tmp_path / "run").effect(edge["source"], edge["target"])["effects"]
    errors = [one["standard_error"] for value in told for one in value["values"] if one["effect"]]
    assert errors == pytest.approx([edge["standard_error"]], rel=0.02)
    page = Network.load(tmp_path / "run").report().read_text(encoding="utf-8")
    assert "share between groups (ICC)" in page
    assert "rows of a group depend on each other" in page
    assert "rows of a group depend on each other" in " ".join(str(Network.load(tmp_path / "run")).split())


def test_where_no_group_has_two_rows_nothing_is_assumed_of_two_rows(tmp_path: Path) -> None:
    def once(site: int) -> tuple[list[str], list[list[object]]]:
        return lasting(site, patients=300, visits=1)

    result = run(folder(tmp_path / "data", once, {**ROWS, **VARIABLES}), tmp_path / "run")
    assert not any("any two rows" in text for text in result["verdict"]["assumed"])


def test_rows_count_by_what_parents_leave_of_a_variable(tmp_path: Path) -> None:
    """Little of y lasts, but most of what x leaves of it; and most of z."""

    def made(site: int) -> tuple[list[str], list[list[object]]]:
        rng = np.random.default_rng(500 + site)
        lasts, own = np.repeat(rng.standard_normal((60, 2)), 10, axis=0), rng.standard_normal((600, 3))
        e, z = (np.sqrt(0.9) * lasts + np.sqrt(0.1) * own[:, :2]).T
        rows = zip(np.repeat(np.arange(60), 10).tolist(), own[:, 2], 2.0 * own[:, 2] + e, z, strict=True)
        return ["patient", "x", "y", "z"], [list(row) for row in rows]

    result = run(folder(tmp_path / "data", made, {**ROWS, **VARIABLES}), tmp_path / "run")
    told = result["estimation"]["dependent_rows"]
    assert told["icc"]["y"] == pytest.approx(0.9 / 5, abs=0.05)
    source, target = next(iter(edges(result)))
    if target == "y":
        assert told["residual_icc"]["y"] == pytest.approx(0.9, abs=0.05)
    assert told["counted"] == pytest.approx(3 * 600 / (1 + 9 * 0.9**2), rel=0.15), (source, target)


def test_processes_learn_of_rows_of_groups_with_gaps_what_one_process_learns(tmp_path: Path) -> None:
    def gappy(site: int) -> tuple[list[str], list[list[object]]]:
        header, rows = lasting(site)
        return header, [[*row[:4], "" if k % 5 == 0 else row[4]] for k, row in enumerate(rows)]

    data = folder(tmp_path / "data", gappy, {**ROWS, **VARIABLES})
    alone = run(data, tmp_path / "alone", rounds=4)
    plan = described_by(FAST.with_settings(rounds=4), data)
    localnet.run(plan, {f"site-{k}": data / f"site-{k}.csv" for k in range(1, SITES + 1)}, tmp_path / "run", seeds={})
    network = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    for part in ("edges", "estimation"):
        assert network[part] == json.loads(json.dumps(alone[part]))
    assert list(alone["estimation"]["dependent_rows"]["icc"].values())[:2] == pytest.approx([0.9] * 2, abs=0.05)


def test_how_rows_depend_on_each_other_is_told_by_the_sites_that_have_the_columns(tmp_path: Path) -> None:
    lacking = {1: "y", 2: "z"}

    def made(site: int) -> tuple[list[str], list[list[object]]]:
        header, rows = lasting(site)
        there = [k for k, name in enumerate(header) if name != lacking.get(site)]
        return [header[k] for k in there], [[row[k] for k in there] for row in rows]

    data = folder(tmp_path / "data", made, {**ROWS, **VARIABLES})
    for site, name in lacking.items():
        (data / f"site-{site}.columns.toml").write_text(f"[{name}]\nabsent = true\n", encoding="utf-8")
    told = run(data, tmp_path / "run")["estimation"]["dependent_rows"]
    assert list(told["icc"].values()) == pytest.approx([0.9] * 3, abs=0.05)


def test_a_site_of_few_groups_is_warned_of_and_the_others_are_not(tmp_path: Path) -> None:
    def made(site: int) -> tuple[list[str], list[list[object]]]:
        return lasting(site, patients=9 if site == 2 else 60)

    result = run(folder(tmp_path / "data", made, {**ROWS, **VARIABLES}), tmp_path / "run")
    (warning,) = (text for text in result["warnings"] if "independent" in text)
    assert warning.startswith("rows of 9 groups count as independent records, which they are not (at site-2)")
    assert result["estimation"]["dependent_rows"]["other_rows"] == pytest.approx(9.0 * 1200 / 1290, rel=0.01)


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    def sorted_rows(site: int) -> tuple[list[str], list[list[object]]]:
        header, rows = lasting(site)
        return header, sorted(rows, key=lambda row: str(row[:2]), reverse=True)

    one, other = (
        run(folder(tmp_path / name, make, {**ROWS, **VARIABLES}), tmp_path / f"run {name}")["estimation"]
        for name, make in (("shuffled", lasting), ("sorted", sorted_rows))
    )
    assert other["dependent_rows"]["icc"] == pytest.approx(one["dependent_rows"]["icc"], rel=1e-6)
    assert other["dependent_rows"]["counted"] == pytest.approx(one["dependent_rows"]["counted"], rel=1e-6)


def test_deviations_leave_the_differences_between_patients_out(tmp_path: Path) -> None:
    within = {"patient": {"kind": "group", "within": "within"}}
    result = run(folder(tmp_path / "data", repeated, {**within, **VARIABLES}), tmp_path / "run")
    assert skeleton(result) == set(), "all three vary by themselves within a patient"
    assert {site["n_samples"] for site in result["sites"].values()} == {560}


def test_deviations_are_learned_from_where_a_site_lacks_a_column(tmp_path: Path) -> None:
    def moving(site: int) -> tuple[list[str], list[list[object]]]:
        """x -> y -> z within a patient; the third site has no z."""
        rng = np.random.default_rng(site)
        level, own = 2.0 * rng.standard_normal((60, 3)), rng.standard_normal((60, 8, 3))
        own[..., 1] += own[..., 0]
        own[..., 2] += own[..., 1]
        rows = [[f"p{p}", *(level[p] + own[p, t]).tolist()] for p in range(60) for t in range(8)]
        there = 4 - (site == 3)
        return ["patient", "x", "y", "z"][:there], [row[:there] for row in rows]

    data = folder(tmp_path / "data", moving, {"patient": {"kind": "group", "within": "within"}, **VARIABLES})
    (data / "site-3.columns.toml").write_text("[z]\nabsent = true\n", encoding="utf-8")
    result = run(data, tmp_path / "run")
    assert skeleton(result) == {frozenset("xy"), frozenset("yz")}
    assert result["gaps"]["values"]["site-3"] == {"x": 420, "y": 420, "z": 0}


def test_lags_learn_what_causes_what_one_visit_later(tmp_path: Path) -> None:
    result = run(folder(tmp_path / "data", chains, {**GROUP, **LAGS, **VARIABLES}), tmp_path / "run")
    into_present = {pair for pair in edges(result) if not pair[1].endswith("@-1")}
    assert into_present == {("x@-1", "x"), ("y@-1", "y"), ("y@-1", "z"), ("x", "y")}
    assert {site["rows_used"] for site in result["sites"].values()} == {600}, "EM uses the 60 first rows, too"
    with pytest.raises(SetupError, match="'x@-1': what it was one row before"):
        Network.load(tmp_path / "run").effect("x@-1", "y")
    (effect,) = Network.load(tmp_path / "run").effect("x", "y")["effects"][0]["values"]
    assert effect["effect"] == pytest.approx(0.6, abs=0.1)
    assumed = json.dumps(result["verdict"])
    assert "that nothing causes what was before it" in assumed
    assert "rows that depend on more than the row before" in assumed


def drifting(site: int, patients: int = 60, visits: int = 10) -> tuple[list[str], list[list[object]]]:
    """x -> y at a visit; x, y and z all rise with time."""
    rng = np.random.default_rng(400 + site)
    rows: list[list[object]] = []
    for p in range(patients):
        for t in range(visits):
            e, day = rng.standard_normal(3), 3 * t + 1
            x = 0.15 * day + e[0]
            rows.append([f"pat{site}q{p}", f"2024-05-{day:02d}", x, 0.7 * x + 0.1 * day + e[1], 0.12 * day + e[2]])
    rng.shuffle(rows)  # type: ignore[arg-type]
    return ["patient", "visit", "x", "y", "z"], rows


def test_what_all_patients_do_alike_as_time_goes_by_makes_no_edges(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", drifting, {**ROWS, "visit": {"kind": "time"}, **VARIABLES})
    assert skeleton(run(data, tmp_path / "without")) >= {frozenset("xz")}, "the drift is a common cause"
    trend = {"visit": {"kind": "time", "trend": True}}
    data = folder(tmp_path / "trend", drifting, {**ROWS, **trend, **VARIABLES})
    result = run(data, tmp_path / "run")
    from_time = {("visit", "x"), ("visit", "y"), ("visit", "z")}
    assert skeleton(result) == {frozenset(pair) for pair in (*from_time, ("x", "y"))}
    assert {(edge["source"], edge["target"]) for edge in result["edges"] if edge["directed"]} == from_time
    weights = {(edge["source"], edge["target"]): edge["weight"] for edge in result["edges"]}
    assert weights["visit", "z"] == pytest.approx(0.12, abs=0.01), "a day"
    assert "that nothing causes 'visit'" in json.dumps(result["verdict"])
    lagged = {**GROUP, "visit": {"kind": "time", "trend": True, "lags": 1}, **VARIABLES}
    with_lags = run(folder(tmp_path / "lags", drifting, lagged), tmp_path / "run with lags")
    assert "visit@-1" not in with_lags["variables"]
    assert from_time <= edges(with_lags)
    assert "differ by nothing that lasts" in json.dumps(with_lags["verdict"]["assumed"])
    model = FedSparseBNSL(plan=FAST, dictionary={**ROWS, **trend, **VARIABLES}).fit(frames(drifting))
    assert model.result_["edges"] == result["edges"]
    Network.load(tmp_path / "run").report()


@pytest.mark.parametrize(("unit", "dates_at"), [("", (1, 2)), ("days", (1,)), ("days", (1, 2, 3))])
def test_a_time_with_a_trend_is_a_date_at_all_sites_or_a_number_at_all(
    unit: str, dates_at: tuple[int, ...], tmp_path: Path
) -> None:
    def made(site: int) -> tuple[list[str], list[list[object]]]:
        header, rows = drifting(site)
        times = [row[1] if site in dates_at else str(row[1])[-2:] for row in rows]
        return header, [[row[0], time, *row[2:]] for row, time in zip(rows, times, strict=True)]

    visit = {"visit": {"kind": "time", "trend": True, **({"unit": unit} if unit else {})}}
    odd, has = ("site-1", "dates or times") if unit else ("site-3", "numbers")
    with pytest.raises(DataError, match=f"{odd}.* column 'visit' holds {has}; by the data dictionary"):
        run(folder(tmp_path / "data", made, {**ROWS, **visit, **VARIABLES}), tmp_path / "run")


def test_a_trend_is_nothing_for_a_private_plan(tmp_path: Path) -> None:
    bounded = {name: {"range": [-20.0, 20.0]} for name in VARIABLES}
    data = folder(tmp_path / "data", drifting, {**GROUP, "visit": {"kind": "time", "trend": True}, **bounded})
    with pytest.raises(PlanError, match=r"visit\.trend makes a variable of a time"):
        run(data, tmp_path / "run", "private")


def test_processes_learn_what_one_process_learns(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", chains, {**GROUP, **LAGS, **VARIABLES})
    alone = run(data, tmp_path / "alone", rounds=4)
    plan = described_by(FAST.with_settings(rounds=4), data)
    localnet.run(plan, {f"site-{k}": data / f"site-{k}.csv" for k in range(1, SITES + 1)}, tmp_path / "run", seeds={})
    network = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert network["edges"] == json.loads(json.dumps(alone["edges"]))
    left = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert not re.search(rb"pat\dq\d|2024-05", left)


def test_a_private_run_has_one_bounded_record_a_patient(tmp_path: Path) -> None:
    bounded = {name: {"range": [-20.0, 20.0]} for name in VARIABLES}
    data = folder(tmp_path / "data", repeated, {**GROUP, **bounded})
    result = run(data, tmp_path / "run", "private")
    assert {site["n_samples"] for site in result["sites"].values()} == {80}
    plan = described_by(Plan.load("private").with_settings(n_participants=SITES), data)
    told = guarantee_sentence(plan, 3, 80, plan.rounds + 2)
    assert "A record is the mean of all rows of a site with the same 'patient', which are protected together" in told
    assert any(
        line.startswith("record        the mean of all rows")
        for line in price_lines(price_summary(plan, n_samples=80, n_variables=3))
    )


def test_a_private_run_may_count_all_rows_of_a_patient_as_one_record(tmp_path: Path) -> None:
    bounded = {name: {"range": [-20.0, 20.0]} for name in VARIABLES}
    data = folder(tmp_path / "data", repeated, {**GROUP, **bounded})
    plan = Plan.load("private", ["privacy.persons_by = 'rows'"]).with_settings(n_participants=SITES)
    results = [run(data, tmp_path / str(k), one) for k, one in enumerate(("private", plan))]
    assert [{site["n_samples"] for site in result["sites"].values()} for result in results] == [{80}, {80}]
    described = described_by(plan, data)
    told = guarantee_sentence(described, 3, 80, described.rounds + 2)
    assert "A record is what all rows of a site with the same 'patient' tell on average, which are protected" in told
    table = tables_for(described, {"site-1": data / "site-1.csv"})["site-1"]
    (line,) = (line for line in remarks(table, described) if line.startswith("a person is protected, not a row"))
    assert "80 persons, with 640 rows in all, of which none is left out; of a person what all rows tell" in line
    # Within a patient, all three vary with variance 0.16, of which an eighth is left in means of eight rows.
    means = described_by(Plan.load("private").with_settings(n_participants=SITES), data)
    with mock.patch.object(private_moments, "rounded_gaussian", return_value=0):
        of_rows, of_means = (Participant("site-1", table, one)._problem.noisy_columns for one in (described, means))
    np.testing.assert_allclose(of_rows.means, of_means.means, atol=1e-6)
    np.testing.assert_allclose(of_rows.variances - of_means.variances, 0.14, atol=0.02)


# ---- notebooks -----------------------------------------------------------------------------------------------------


def frames(make: Any) -> list[pd.DataFrame]:
    found = []
    for k in range(1, SITES + 1):
        header, rows = make(k)
        frame = pd.DataFrame(rows, columns=header)
        found.append(frame.assign(visit=pd.to_datetime(frame["visit"])))
    return found


def test_frames_are_prepared_as_files_are(tmp_path: Path) -> None:
    dictionary = {**GROUP, **LAGS, **VARIABLES}
    model = FedSparseBNSL(plan=FAST, dictionary=dictionary).fit(frames(chains))
    result = run(folder(tmp_path / "data", chains, dictionary), tmp_path / "run")
    assert list(model.feature_names_in_) == result["variables"] == ["x", "y", "z", "x@-1", "y@-1", "z@-1"]
    assert model.result_["edges"] == result["edges"]


def test_a_frame_without_its_group_is_refused() -> None:
    with pytest.raises(DataError, match="lacks 'patient'"):
        FedSparseBNSL(plan="standard", dictionary={**GROUP, **VARIABLES}).fit(
            [frame.drop(columns="patient") for frame in frames(repeated)]
        )

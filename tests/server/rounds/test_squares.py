"""Squares of numbers in private rounds of moments: what is found with them, when they are asked for, and what stays."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import MOST_COLUMNS_IN_SHARES
from fedbnsl.privacy.report import price_lines, price_summary
from fedbnsl.protocol.messages import SiteState
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.rounds.residual_moments import squared, with_squares
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import randomness
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.run import round_loop
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_server.store import checkpoint
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.simulate import simulate
from plain_sites import PlainSites, states_of_run
from report_runs import Page

NAMES, SITES, ROWS = ("dose", "pulse", "stay"), 3, 3000
RANGES = {name: {"range": [-8.0, 8.0]} for name in NAMES}


def table(seed: int) -> Matrix:
    """The pulse is a U of the dose; the stay is a line of the pulse."""
    rng = np.random.default_rng(seed)
    dose, pulse, stay = rng.standard_normal((3, ROWS))
    pulse = (dose**2 - 1.0) * 0.9 + 0.6 * pulse
    return np.column_stack([dose, pulse, 0.5 * pulse + 0.7 * stay])


TABLES = [table(seed) for seed in range(SITES)]


def run(
    folder: Path, epsilon: float, tables: list[Matrix] = TABLES, settings: Sequence[str] = (), **ranges: Any
) -> dict[str, Any]:
    plan = Plan.load("private", settings, epsilon=epsilon).with_settings(
        n_participants=SITES, bootstrap=0, dictionary={name: {**RANGES[name], **ranges} for name in NAMES}
    )
    sites = {f"site-{k}": Dataset.of_values(NAMES, X, origin="drawn", warn=False) for k, X in enumerate(tables)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return simulate(plan, sites, folder, noise_seed=1)


def pairs(result: dict[str, Any]) -> set[frozenset[str]]:
    return {frozenset((edge["source"], edge["target"])) for edge in result["edges"]}


U, LINE = frozenset(("dose", "pulse")), frozenset(("pulse", "stay"))


def test_where_noise_is_small_an_edge_is_found_that_only_a_square_shows(tmp_path: Path) -> None:
    result = run(tmp_path / "run", 20.0)
    assert pairs(result) == {U, LINE}
    assert "dose" in result["curves"]["variables"]
    (effect,) = [one for one in result["curves"]["effects"] if (one["source"], one["target"]) == ("dose", "pulse")]
    at, change = np.array(effect["at"]), np.array(effect["change"])
    # All three graphs of the class are as good: where the stay leads to the pulse, the dose acts beside it.
    beside = [2] if ("stay", "pulse") in {(edge["source"], edge["target"]) for edge in result["edges"]} else []
    dose, pulse, *others = np.vstack(TABLES)[:, [0, 1, *beside]].T
    expected = np.linalg.lstsq(np.column_stack([dose**2, dose, np.ones_like(dose), *others]), pulse, rcond=None)[0][0]
    assert np.abs(change - expected * at**2).max() < 0.5, "a parabola through the mean"
    assert effect["spread"] == pytest.approx(expected * np.sqrt(2.0), rel=0.15), "of the part that z^2 has"
    (edge,) = [one for one in result["edges"] if {one["source"], one["target"]} == U]
    assert abs(edge["weight"]) < 0.15, "the line through it is flat"
    told = " ".join(result["verdict"]["not_tested"])
    assert "lines or parabolas" in told
    assert "looks for no curves" not in told
    page = Page(write_report(tmp_path / "run").read_text(encoding="utf-8")).text
    assert "Found in the sites' noisy moments" in page
    assert "total effects along the curves are not known" in page
    assert "--change A B" not in page


def test_with_squares_lines_are_as_steep_as_they_are_though_records_are_clipped(tmp_path: Path) -> None:
    """A chain of correlations of 0.7: in a mean of 0.68 if records with squares counted as Gaussian."""
    names, told = tuple("abcdefgh"), list[float]()
    plan = Plan.load("private", epsilon=5.0).with_settings(
        n_participants=SITES, bootstrap=0, dictionary={name: {"range": [-5.0, 5.0]} for name in names}
    )
    for seed in range(3):
        X = np.random.default_rng(seed).standard_normal((SITES, ROWS, len(names)))
        for k in range(1, len(names)):
            X[..., k] = 0.7 * X[..., k - 1] + np.sqrt(1.0 - 0.7**2) * X[..., k]
        sites = {f"site-{k}": Dataset.of_values(names, one, origin="drawn", warn=False) for k, one in enumerate(X)}
        result = simulate(plan, sites, tmp_path / str(seed), noise_seed=seed)
        assert result["curves"] is not None, "squares were asked for"
        told += [edge["standardised"] for edge in result["edges"]]
    assert len(told) == 3 * 7
    assert np.mean(told) == pytest.approx(0.7, abs=0.008)


@pytest.mark.parametrize("bends", [False, True])
def test_children_of_the_same_parents_have_no_edge_for_what_their_squares_share(tmp_path: Path, bends: bool) -> None:
    """Four are sums of a and b: their squares share the product of these, which no square of a parent says."""
    rng = np.random.default_rng(0)
    a, b, *noises = rng.standard_normal((7, SITES * 5 * ROWS))
    children = [0.7 * (a + b) + 0.6 * noise for noise in noises[:4]]
    names, true = ("a", "b", "w", "x", "y", "z", "u"), {frozenset((p, c)) for p in "ab" for c in "wxyz"}
    u = 0.9 * (a**2 - 1.0) * bends + 0.6 * noises[4]
    plan = Plan.load("private", epsilon=20.0).with_settings(
        n_participants=SITES, bootstrap=20, dictionary={name: {"range": [-8.0, 8.0]} for name in names}
    )
    X = np.array_split(np.column_stack([a, b, *children, u]), SITES)
    sites = {f"site-{k}": Dataset.of_values(names, one, origin="drawn", warn=False) for k, one in enumerate(X)}
    result = simulate(plan, sites, tmp_path / "run", noise_seed=1)
    assert result["curves"] is not None, "squares were asked for"
    assert ("a" in result["curves"]["variables"]) == bends
    assert pairs(result) == true | ({frozenset("au")} if bends else set())
    between = [one for one in result["unsure"] if {one["source"], one["target"]} <= set("wxyz")]
    assert all(one["adjacent"] < 0.5 for one in between), "nor do draws show one"
    into = [edge for edge in result["edges"] if edge["target"] in "wxyz"]
    assert all(edge["directed"] and edge["bootstrap"]["forward"] > 0.7 for edge in into)


def test_a_u_is_found_on_what_has_no_square_itself(tmp_path: Path) -> None:
    """Of a number on one that is said to be straight."""
    rng = np.random.default_rng(2)
    x, z, e = rng.standard_normal((3, SITES * ROWS))
    names = ("x", "y", "z")
    ranges = {"x": {"range": [-8.0, 8.0]}, "y": {"range": [-9.0, 9.0], "shape": "linear"}, "z": {"range": [-8.0, 8.0]}}
    plan = Plan.load("private", epsilon=20.0).with_settings(n_participants=SITES, bootstrap=0, dictionary=ranges)
    X = np.array_split(np.column_stack([x, 0.9 * (x**2 - 1.0) + 0.6 * e, z]), SITES)
    sites = {f"site-{k}": Dataset.of_values(names, one, origin="drawn", warn=False) for k, one in enumerate(X)}
    assert pairs(simulate(plan, sites, tmp_path / "run", noise_seed=1)) == {frozenset("xy")}


def test_where_noise_is_large_or_the_plan_or_the_dictionary_says_so_nobody_asks_for_squares(tmp_path: Path) -> None:
    for name, one in {
        "noise": run(tmp_path / "noise", 0.5),
        "lines": run(tmp_path / "lines", 20.0, shape="linear"),
        "plan": run(tmp_path / "plan", 20.0, settings=["look_for_curves=false"]),
    }.items():
        assert U not in pairs(one), name
        assert one["curves"] is None, name
        assert any("looks for no curves" in text for text in one["verdict"]["not_tested"]), name


def test_an_edge_that_only_a_square_shows_is_found_in_rows_with_gaps(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    gaps = [np.where(rng.random(X.shape) < 0.1, np.nan, X) for X in TABLES]
    result = run(tmp_path / "run", 20.0, gaps)
    assert pairs(result) == {U, LINE}
    assert "dose" in result["curves"]["variables"]


def test_a_number_that_is_said_to_bend_does_where_squares_are_asked_for(tmp_path: Path) -> None:
    noises = np.random.default_rng(4).standard_normal((SITES, ROWS))
    lines = [np.column_stack([X[:, 0], X[:, 0] + z, z]) for X, z in zip(TABLES, noises, strict=True)]
    assert run(tmp_path / "auto", 20.0, lines)["curves"]["variables"] == []
    assert run(tmp_path / "said", 20.0, lines, shape="curved")["curves"]["variables"] == list(NAMES)


def test_what_noise_hides_has_no_variance_beside_curves_either(tmp_path: Path) -> None:
    still = [np.column_stack([X[:, :2], 1e-4 * X[:, 2]]) for X in TABLES]
    result = run(tmp_path / "run", 20.0, still)
    assert "dose" in result["curves"]["variables"]
    assert [one["variable"] for one in result["unused"]] == ["stay"]
    assert result["fit"]["stay"]["residual_variance"] is None
    assert result["fit"]["dose"]["residual_variance"] > 0.5


class Kept:
    """A journal in memory, with noise that depends on the round alone."""

    head = None

    def __init__(self, site: str) -> None:
        self.kept: dict[int, bytes] = {}
        self.site = site
        self.randbelow = randomness.seeded(site)

    def release(self, t: int, draw: Callable[[], bytes], *, attempt: int = 0) -> bytes:
        if t not in self.kept:
            self.kept[t] = draw()
        return self.kept[t]

    def stored(self, t: int, *, attempt: int = 0) -> bytes | None:
        return self.kept.get(t)


def sites_of(plan: Plan, *, anew: bool) -> PlainSites:
    tables = {f"site-{k}": Dataset.of_values(NAMES, X, origin="drawn", warn=False) for k, X in enumerate(TABLES)}
    journals = {site: Kept(site) for site in tables}

    def start(site: str, snapshot: SiteState | None) -> Participant:
        journal = journals[site]
        return Participant(site, tables[site], plan, snapshot, journal=journal, run=1, randbelow=journal.randbelow)

    return PlainSites(tables, start, anew=anew)


def test_a_run_with_squares_ends_the_same_though_everybody_starts_again_every_round(tmp_path: Path) -> None:
    plan = Plan.load("private", ["privacy.secure_aggregation=false"], epsilon=40.0).with_settings(
        n_participants=SITES, bootstrap=0, dictionary=RANGES
    )
    n_samples = {f"site-{k}": ROWS for k in range(SITES)}
    straight = states_of_run(plan, sites_of(plan, anew=False), variables=NAMES, n_samples=n_samples)
    assert len(straight[1].scales) == 2 * len(NAMES)
    sites, state = sites_of(plan, anew=True), None

    def save(after: AdmmState, record: RoundRecord) -> None:
        checkpoint.save(tmp_path / "state", after, plan_digest=plan.digest())
        raise InterruptedError

    for one in straight:
        with pytest.raises(InterruptedError):
            round_loop.run(plan, NAMES, n_samples, sites, on_round=save, state=state)
        state = checkpoint.load(tmp_path / "state", plan_digest=plan.digest())
        assert state.refitted == one.refitted
        assert state.scales.tobytes() == one.scales.tobytes()
        assert state.next_weights == one.next_weights
    assert state is not None
    assert state.curves is not None
    assert straight[-1].curves is not None
    assert state.curves.effects == straight[-1].curves.effects
    assert state.curves.columns.tolist() == straight[-1].curves.columns.tolist()
    assert sites.tasks[-1].content.scales.size == 2 * len(NAMES)


def test_what_squares_cost_beside_is_noise_alone() -> None:
    plan = Plan.load("private", epsilon=5.0).with_settings(dictionary=RANGES)
    told = price_summary(plan, n_samples=ROWS, n_variables=3)
    lines = price_summary(plan.with_settings(look_for_curves=False), n_samples=ROWS, n_variables=3)
    assert told["zcdp"] == lines["zcdp"]
    assert told["squares"] == 3
    wide, narrow = (told["noise"][name] for name in ("residual_moments_with_squares", "residual_moments"))
    assert wide["noise_std"] > 1.9 * narrow["noise_std"], "records of six columns are clipped to twice the squared norm"
    assert lines["noise"] == {
        name: one for name, one in told["noise"].items() if name != "residual_moments_with_squares"
    }
    assert any(line.startswith("with squares  noise ") for line in price_lines(told))


def test_a_plan_in_which_sites_lack_columns_or_with_too_many_asks_for_no_squares() -> None:
    plan = Plan.load("private", epsilon=5.0).with_settings(dictionary=RANGES)
    assert squared(plan, plan.columns(NAMES)).tolist() == [0, 1, 2]
    assert not squared(plan.with_settings(absent={"site-1": ["stay"]}), plan.columns(NAMES)).size
    many = [f"x{k}" for k in range(MOST_COLUMNS_IN_SHARES // 2 + 1)]
    assert not squared(plan, plan.columns(many)).size
    assert squared(plan, plan.columns(many[1:])).size == len(many) - 1


def test_squares_belong_to_the_variables_of_their_numbers() -> None:
    plan = Plan.load("private", epsilon=1.0).with_settings(
        dictionary={
            "dose": RANGES["dose"],
            "kind": {"kind": "nominal", "levels": ["a", "b", "c"]},
            "stay": RANGES["stay"],
        }
    )
    columns = plan.columns(["dose", "kind=b", "kind=c", "stay"])
    of = squared(plan, columns)
    assert of.tolist() == [0, 3]
    wide = with_squares(columns, of)
    assert wide.names[4:] == ("dose^2", "stay^2")
    assert wide.variables == columns.variables
    assert wide.variable_of.tolist() == [0, 1, 1, 2, 0, 2]


def test_the_price_of_a_plan_whose_sites_lack_columns_says_that_it_looks_for_no_curves() -> None:
    plan = Plan.load("private", epsilon=5.0).with_settings(dictionary=RANGES)
    lacking = plan.with_settings(absent={"site-1": ["stay"]})
    told, before = (
        [line for line in price_lines(price_summary(one, n_samples=ROWS, n_variables=3)) if line.startswith("curves ")]
        for one in (lacking, plan)
    )
    assert before == []
    assert len(told) == 1
    assert "not looked for" in told[0]

"""What released moments may say of means far from zero: against draws, and never of centred tables."""

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.protocol.messages import FindingCode, TableFinding
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.search.private.centring import capped, in_one_direction, near_bounds
from fedbnsl_server.search.private.pooled_moments import mean_over_records
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise

D, N = 10, 4000
R = 0.55 * D**0.5
MOMENTS = Plan.parse({
    "n_participants": 3, "local_solver": "dp-pgcd", "rounds": 0, "refit_rounds": 0, "moments_rounds": 2,
    "local_steps": 1, "privacy": {"epsilon": 5.0, "feature_bounds": [100.0], "smoothness_share": 0.05},
})  # fmt: skip


@pytest.mark.parametrize("u", [0.005, 0.3, 1.0, 3.3, 50.0, 1e5])
def test_the_capped_mean_square_is_that_of_draws(u: float) -> None:
    g = np.random.default_rng(1).standard_normal(400_000)
    squares = np.minimum(u * g**2, 1.0)
    assert capped(u) == pytest.approx(squares.mean(), abs=4 * squares.std() / 400_000**0.5 + 1e-12)


def released(X: Matrix, bound: float) -> tuple[Matrix, Matrix]:
    """Scales and clipped moments of a table, without noise."""
    scales = np.sqrt(np.minimum(X**2, bound).mean(axis=0))
    return scales, clipped_moments(X / scales)


def clipped_moments(Z: Matrix) -> Matrix:
    Z = Z * np.minimum(1.0, R / np.linalg.norm(Z, axis=1))[:, None]
    return Z.T @ Z / len(Z)


def found(X: Matrix, bound: float = 100.0) -> bool:
    scales, S = released(X, bound)
    return in_one_direction(
        [S], [len(X)], [0], scales=scales, scale_variances=[0], bounds=np.full(D, bound), norm_bound=R
    )


def centred(kind: str, seed: int) -> Matrix:
    rng = np.random.default_rng(seed)
    if kind == "independent":
        return rng.standard_normal((N, D))
    if kind == "a chain":
        return np.cumsum(rng.standard_normal((N, D)), axis=1)
    factor, noise = rng.standard_normal((N, 1)), rng.standard_normal((N, D))
    return factor + {"a common factor": 0.3, "nothing but a factor": 1e-3}[kind] * noise


@pytest.mark.parametrize("kind", ["independent", "a chain", "a common factor", "nothing but a factor"])
@pytest.mark.parametrize("seed", range(3))
def test_centred_gaussian_records_are_never_suspected_however_correlated(kind: str, seed: int) -> None:
    X = centred(kind, seed)
    assert not found(X)
    # Nor where the bounds cut off a good part of them.
    assert not found(3.0 * X / X.std(axis=0), bound=9.0)


@pytest.mark.parametrize("kind", ["independent", "a chain", "a common factor"])
def test_records_far_from_zero_in_all_variables_are_suspected(kind: str) -> None:
    X = centred(kind, 1)
    assert found(X + 3.0 * X.std(axis=0))
    signs = np.where(np.arange(D) % 2, 1.0, -1.0)
    assert found(X + 3.0 * signs * X.std(axis=0)), "whatever the signs"


def test_a_mean_square_is_near_its_bound_only_beyond_the_noise() -> None:
    moments, bounds = np.array([4.0, 5.2, 9.0]), np.array([10.0, 10.0, 100.0])
    assert near_bounds(moments, 0.0, bounds) == [1]
    assert near_bounds(moments, 0.02, bounds) == []


@pytest.mark.parametrize(("rows", "near"), [([100, 300], [1]), ([300, 100], [0]), ([200, 200], [])])
def test_a_site_counts_by_its_rows(rows: list[int], near: list[int]) -> None:
    moments, bounds = [np.array([6.0, 3.0]), np.array([3.0, 6.0])], np.array([10.0, 10.0])
    assert near_bounds(mean_over_records(moments, rows), 0.0, bounds) == near


def test_records_are_not_suspected_for_what_the_noise_of_the_scales_explains() -> None:
    """Mean squares all released too small, together by two standard deviations: records seem longer than they are."""
    X, bound, noise = centred("nothing but a factor", 1), 100.0, 0.8
    exact, _ = released(X, bound)
    scales = exact * np.sqrt(1.0 - 2.0 * noise / D**0.5)
    variance = int((noise * (exact**2).mean() / bound * LATTICE * N) ** 2)

    def suspected(scale_variance: int) -> bool:
        S, bounds = clipped_moments(X / scales), np.full(D, bound)
        variances = [scale_variance]
        return in_one_direction([S], [N], [0], scales=scales, scale_variances=variances, bounds=bounds, norm_bound=R)

    assert suspected(0), "if the scales were exact"
    assert not suspected(variance)


# ---- whole runs ----------------------------------------------------------------------------------------------------


def tables(offset: float, *, checked: bool = False) -> dict[str, Dataset]:
    made = synthesise(8, 8, 3, 2000, 4)
    named = {f"site-{k}": X + offset * X.std(axis=0) for k, X in enumerate(made.tables)}
    if not checked:
        return {site: Dataset(made.variables, X) for site, X in named.items()}
    return {site: Dataset.of_values(made.variables, X, origin=site) for site, X in named.items()}


def said(result: dict) -> list[str]:
    return [warning for warning in result["warnings"] if not warning.startswith("no privacy guarantee")]


def test_a_private_run_over_centred_tables_says_nothing(tmp_path) -> None:
    for seed in range(3):
        assert said(simulate(MOMENTS, tables(0.0), tmp_path / str(seed), noise_seed=seed)) == []


def test_a_private_run_over_tables_far_from_centred_says_so_from_what_was_released(tmp_path) -> None:
    result = simulate(MOMENTS, tables(2.5), tmp_path / "run", noise_seed=1)
    codes = [found["code"] for entry in result["rounds"] for found in entry.get("findings", [])]
    assert "in_one_direction" in codes
    assert any("means may lie far from zero" in warning for warning in said(result))


@pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")
def test_in_a_private_run_the_flags_of_a_table_change_nothing_that_is_sent_or_kept(tmp_path) -> None:
    """The same run, with tables whose means were found to be far from zero, and with tables nobody looked at."""
    runs = [
        simulate(MOMENTS, tables(4.0, checked=checked), tmp_path / str(checked), noise_seed=1)
        for checked in (True, False)
    ]
    assert all(one.odd for one in tables(4.0, checked=True).values())
    assert runs[0]["warnings"] == runs[1]["warnings"]
    assert runs[0]["bytes"]["up"] == runs[1]["bytes"]["up"]
    assert runs[0]["manifest"]["sha256"]["checkpoint.npz"] == runs[1]["manifest"]["sha256"]["checkpoint.npz"]


def test_a_coordinator_does_not_take_flags_of_a_private_table(tmp_path, monkeypatch) -> None:
    genuine = Participant.handle

    def handle(self, task):
        update = genuine(self, task)
        object.__setattr__(update, "findings", (TableFinding(FindingCode.LOOKS_CATEGORICAL, (0,)),))
        return update

    monkeypatch.setattr(Participant, "handle", handle)
    with pytest.raises(RemoteProtocolError, match="findings about a private table"):
        simulate(MOMENTS, tables(0.0), tmp_path / "run", noise_seed=1)

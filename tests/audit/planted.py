"""Bugs that break the guarantee, each planted in the real code for as long as a `with` lasts."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from fedbnsl.privacy import calibration as pricing
from fedbnsl.privacy import gaussian_dp
from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.budget import journal as run_journal
from fedbnsl_client.budget import payments, spending
from fedbnsl_client.losses import clipped as clipped_gradient
from fedbnsl_client.losses.clipped import ClippedGradient
from fedbnsl_client.privacy import noise, private_moments
from fedbnsl_client.rounds import admm, kinds
from fedbnsl_client.solvers import dp_pgcd, local_solver

Plant = Callable[[Path], AbstractContextManager[None]]


def rewritten(module: ModuleType, folder: Path, *changes: tuple[str, str]) -> ModuleType:
    """The module with some of its text changed, compiled from a file of its own."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, f"{module.__name__} has {text.count(old)} of: {old}"
        text = text.replace(old, new)
    name = f"planted_{module.__name__.rpartition('.')[2]}"
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    changed = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {name: changed}):
        spec.loader.exec_module(changed)
    return changed


class MeanClipped(ClippedGradient):
    """Clips the mean over the records, as the paper's text can be read."""

    def move_to(self, B: Matrix) -> None:
        super().move_to(B)
        for j in range(B.shape[0]):
            self._clip_mean(j)

    def step(self, i: int, j: int, value: float) -> None:
        super().step(i, j, value)
        self._clip_mean(j)

    def _clip_mean(self, j: int) -> None:
        n = self._residual.shape[1]
        with np.errstate(all="ignore"):
            means = np.nan_to_num((self._grid_X * self._residual[j]).mean(axis=1), posinf=1e300, neginf=-1e300)
        self.sums[j] = -np.rint(np.clip(means, -LATTICE, LATTICE)).astype(np.int64) * n


@contextmanager
def clip_of_the_mean(_: Path) -> Iterator[None]:
    with mock.patch.object(dp_pgcd, "ClippedGradient", MeanClipped):
        yield


@contextmanager
def a_price(folder: Path, *changes: tuple[str, str]) -> Iterator[None]:
    """Another price module, wherever prices are made."""
    changed = rewritten(pricing, folder, *changes)
    with (
        mock.patch.object(kinds, "price_of", changed.price_of),
        mock.patch.object(pricing, "price_of", changed.price_of),
    ):
        yield


def priced(name: str, old: str, new: str) -> Plant:
    """A bug that is one change of the price module."""

    def plant(folder: Path) -> AbstractContextManager[None]:
        return a_price(folder, (old, new))

    plant.__name__ = name
    return plant


half_the_sensitivity = priced("half_the_sensitivity", "_variance((2 * LATTICE) ** 2", "_variance(LATTICE**2")
twice_the_sharpness = priced(
    "twice_the_sharpness",
    "sharpness=zcdp.selection_sharpness(privacy",
    "sharpness=2.0 * zcdp.selection_sharpness(privacy",
)
half_the_moments_sensitivity = priced(
    "half_the_moments_sensitivity", "_variance(d * LATTICE**2", "_variance(LATTICE**2"
)
half_the_matrix_sensitivity = priced(
    "half_the_matrix_sensitivity",
    "sensitivity = math.sqrt(2.0) * LATTICE + d",
    "sensitivity = LATTICE / math.sqrt(2.0)",
)
rounding_of_squares_not_counted = priced(
    "rounding_of_squares_not_counted", "n_residuals(plan, D)),", "n_residuals(plan, d)),"
)
half_the_statistics_sensitivity = priced(
    "half_the_statistics_sensitivity", "* (2 * LATTICE + 2) ** 2", "* (LATTICE + 1) ** 2"
)
moments_not_charged = priced("moments_not_charged", "else self.moments_units", "else 0")
first_moments_round_not_charged = priced(
    "first_moments_round_not_charged", "if t in (0, free):", "if t in (0, free, self.rounds + 2):"
)
scales_charged = priced(
    "scales_charged",
    "if t in (0, free):\n            return 0\n",
    "if t in (0, free):\n            return self.moments_units\n",
)
setup_not_charged = priced(
    "setup_not_charged", "if not t:\n            return self.setup_units", "if not t:\n            return 0"
)
last_round_not_charged = priced(
    "last_round_not_charged", "return self.round_units if t <=", "return self.round_units * (t < self.rounds) if t <="
)
total_without_a_round = priced("total_without_a_round", "return sum(of_rounds) +", "return sum(of_rounds[:-1]) +")


steps_taken_for_gaussian = priced("steps_taken_for_gaussian", "surcharge = math.ceil(a_round * more)", "surcharge = 0")
surcharge_of_one_round = priced(
    "surcharge_of_one_round", "steps = plan.rounds * plan.local_steps", "steps = plan.local_steps"
)
surcharge_not_in_the_whole = priced(
    "surcharge_not_in_the_whole", "max(of_rounds) + self.surcharge_units", "max(of_rounds)"
)
mu_added_linearly = priced("mu_added_linearly", "left), setup, times, privacy", "left), 0, times**2, privacy")


@contextmanager
def mu_squared_without_its_half(folder: Path) -> Iterator[None]:
    changed = rewritten(gaussian_dp, folder, ("return 0.5 * low * low", "return low * low"))
    with mock.patch.object(gaussian_dp, "budget", changed.budget):
        yield


@contextmanager
def surcharge_as_if_one_more_step_followed(folder: Path) -> Iterator[None]:
    changed = rewritten(gaussian_dp, folder, ("v * v / (k - 2.0", "v * v / (k + 1.0 - 2.0"))
    with mock.patch.object(gaussian_dp, "surcharge", changed.surcharge):
        yield


@contextmanager
def discrete_noise_counted_as_gaussian(_: Path) -> Iterator[None]:
    def discrete(price: Any) -> noise.Noise:
        return partial(noise.discrete_gaussian, price.update_variance)

    with mock.patch.object(local_solver, "update_noise", discrete):
        yield


def changed(name: str, module: ModuleType, part: str, *changes: tuple[str, str]) -> Plant:
    """A bug that is a change of a module, of which one part is used."""

    @contextmanager
    def plant(folder: Path) -> Iterator[None]:
        with mock.patch.object(module, part, getattr(rewritten(module, folder, *changes), part)):
            yield

    plant.__name__ = name
    return plant


def surcharged(name: str, *changes: tuple[str, str]) -> Plant:
    """A bug in when a run pays its surcharge."""
    return changed(name, run_journal, "RunJournal", *changes)


_DUE = "return 0 if due and any(self._attempts(one) for one in self._price.step_rounds) else due"
WRONG_SURCHARGES: list[Plant] = [
    surcharged("surcharge_left_out", (_DUE, "return 0")),
    surcharged("surcharge_with_the_last_round", (_DUE, "return due if t == self._price.step_rounds[-1] else 0")),
    surcharged("surcharge_spread_over_the_rounds", (_DUE, "return due // len(self._price.step_rounds)")),
    surcharged("surcharge_that_can_be_skipped", (_DUE, "return due if t == self._price.step_rounds[0] else 0")),
]


@contextmanager
def every_release_reserved_as_gaussian(folder: Path) -> Iterator[None]:
    changed = rewritten(
        run_journal, folder, ("            gaussian=self._price.gaussian,", "            gaussian=True,")
    )
    with mock.patch.object(run_journal, "RunJournal", changed.RunJournal):
        yield


def summed_wrongly(name: str, *changes: tuple[str, str]) -> Plant:
    """A bug in how a ledger adds up and compares."""

    @contextmanager
    def plant(folder: Path) -> Iterator[None]:
        changed = rewritten(spending, folder, *changes)
        allows = mock.patch.object(spending.Cap, "allows", changed.Cap.allows)
        with allows, mock.patch.object(payments, "Spending", changed.Spending):
            yield

    plant.__name__ = name
    return plant


_UNITS = "self.units + other.units"
_KINDS = "all(one.gaussian or not one.units for one in (self, other))"
WRONG_SUMS: list[Plant] = [
    summed_wrongly("any_gaussian_makes_all_gaussian", (_KINDS, _KINDS.replace("all(", "any("))),
    summed_wrongly("the_kind_of_the_last_release_counts", (_KINDS, "other.gaussian")),
    summed_wrongly("the_larger_cap_for_all", ("(spent.gaussian and spent.units <=", "(spent.units <=")),
    summed_wrongly("mu_added_linearly_in_the_ledger", (_UNITS, "int((self.units**0.5 + other.units**0.5) ** 2)")),
    summed_wrongly("units_added_as_squares", (_UNITS, "int((self.units**2 + other.units**2) ** 0.5)")),
]


@contextmanager
def old_entries_taken_for_gaussian(folder: Path) -> Iterator[None]:
    changed = rewritten(payments, folder, ("IS NOT TRUE", "IS FALSE"))
    with mock.patch.object(payments.Payments, "only_gaussian", changed.Payments.only_gaussian):
        yield


@contextmanager
def half_the_variance(_: Path) -> Iterator[None]:
    def narrow(variance: int, randbelow: noise.Randbelow) -> int:
        return noise.discrete_gaussian(variance // 2, randbelow)

    with (
        mock.patch.object(local_solver, "discrete_gaussian", narrow),
        mock.patch.object(local_solver, "rounded_gaussian", narrow),
    ):
        yield


@contextmanager
def half_the_variance_in_the_sampler(_: Path) -> Iterator[None]:
    genuine = noise.discrete_gaussian
    with mock.patch.object(noise, "discrete_gaussian", lambda variance, randbelow: genuine(variance // 2, randbelow)):
        yield


def changed_sampler(name: str, *changes: tuple[str, str]) -> Plant:
    """A bug in the sampler of the releases of moments."""

    @contextmanager
    def plant(folder: Path) -> Iterator[None]:
        changed = rewritten(noise, folder, *changes).rounded_gaussian
        with (
            mock.patch.object(noise, "rounded_gaussian", changed),
            mock.patch.object(private_moments, "rounded_gaussian", changed),
        ):
            yield

    plant.__name__ = name
    return plant


WRONG_SAMPLERS: list[Plant] = [
    changed_sampler("sigma_rounded_down", ("math.isqrt(variance - 1) + 1", "math.isqrt(variance)")),
    changed_sampler(
        "digits_cut_off_and_not_rounded",
        ("            return lowest\n", "            return sigma * numerator // denominator\n"),
    ),
    changed_sampler("only_positive_noise", ("magnitude if randbelow(2) else -magnitude", "magnitude")),
    changed_sampler("every_x_kept", ("if all(_is_kept(k, x, randbelow) for _ in range(k + 1)):", "if x:")),
    changed_sampler("every_k_kept", ("range(k * (k - 1))", "range(0)")),
]
a_quarter_of_all_x_missing = changed_sampler(
    "a_quarter_of_all_x_missing", ("x = [randbelow(_BASE)]  # step N3", "x = [randbelow(_BASE * 3 // 4)]")
)


@contextmanager
def doubled_logits(_: Path) -> Iterator[None]:
    class Doubled(noise.ExponentialMechanism):
        def __init__(self, sharpness: float, allowed: Any) -> None:
            super().__init__(2 * sharpness, allowed)

    with (
        mock.patch.object(noise, "ExponentialMechanism", Doubled),
        mock.patch.object(local_solver, "ExponentialMechanism", Doubled),
    ):
        yield


@contextmanager
def half_the_noise_of_noisy_max(folder: Path) -> Iterator[None]:
    changed = rewritten(
        noise, folder, ("math.ceil(SCORE_SENSITIVITY / sharpness)", "math.ceil(LATTICE / 2 / sharpness)")
    )
    with mock.patch.object(noise, "NoisyMax", changed.NoisyMax):
        yield


@contextmanager
def unclipped_nan(folder: Path) -> Iterator[None]:
    nan = ("product = product if product == product else 0.0", "pass")
    order = (
        "min(max(product, -_LIMIT), _LIMIT)",
        "product if product != product else min(max(product, -_LIMIT), _LIMIT)",
    )
    changed = rewritten(clipped_gradient, folder, nan, order)
    with (
        mock.patch.object(clipped_gradient, "ClippedGradient", changed.ClippedGradient),
        mock.patch.object(dp_pgcd, "ClippedGradient", changed.ClippedGradient),
    ):
        yield


@contextmanager
def private_steps_by(solver: type) -> Iterator[None]:
    """Another class in place of `DpPgcd`, wherever it is made or asked for."""
    with mock.patch.object(local_solver, "DpPgcd", solver), mock.patch.object(admm, "DpPgcd", solver):
        yield


@contextmanager
def admm_terms_inside_the_clip(folder: Path) -> Iterator[None]:
    inside = (
        "slope = released_slope + public[j, i]",
        "unit = gradient.unit[i]; exact = int(gradient.sums[j, i]) * unit\n"
        "            bound = unit * gradient._residual.shape[1] * 2**20\n"
        "            slope = released_slope - exact + min(max(exact + public[j, i], -bound), bound)",
    )
    changed = rewritten(dp_pgcd, folder, inside)
    with private_steps_by(changed.DpPgcd):
        yield


@contextmanager
def unclipped_moments(folder: Path) -> Iterator[None]:
    changed = rewritten(private_moments, folder, ("np.minimum(X * X / bounds, 1.0)", "X * X / bounds"))
    with mock.patch.object(private_moments, "release_second_moments", changed.release_second_moments):
        yield


@contextmanager
def unclipped_records(folder: Path) -> Iterator[None]:
    changed = rewritten(
        private_moments,
        folder,
        ("np.maximum(np.sqrt((Z * Z).sum(axis=1)), norm_bound)", "norm_bound * np.ones(len(Z))"),
    )
    with (
        mock.patch.object(private_moments, "release_covariance", changed.release_covariance),
        mock.patch.object(private_moments, "release_residual_moments", changed.release_residual_moments),
    ):
        yield


@contextmanager
def clipped_before_they_are_scaled(folder: Path) -> Iterator[None]:
    """The records are clipped, and not their residuals."""
    early = (
        "return np.asarray((rows - rows_times(np.ascontiguousarray(rows), W)) / scales)",
        "return np.divide(rows, np.maximum(np.sqrt((rows * rows).sum(axis=1)), norm_bound)[:, None]) * norm_bound "
        "@ (np.eye(len(W)) - W) / scales",
    )
    never = ("np.maximum(np.sqrt((Z * Z).sum(axis=1)), norm_bound)", "norm_bound * np.ones(len(Z))")
    changed = rewritten(private_moments, folder, early, never)
    with mock.patch.object(private_moments, "release_residual_moments", changed.release_residual_moments):
        yield


def _completed(name: str, *changes: tuple[str, str]) -> Plant:
    """A bug in what records with gaps add."""
    return changed(name, private_moments, "release_residual_moments", *changes)


_PREPARED = "x = (rows - centre) / scale"
WRONG_SQUARES = [
    # One record moves the mean, and with it the squares of all others.
    _completed(
        "squares_about_the_mean_of_the_site", ("- squared.centre)", "- np.nanmean(rows[:, squared.of], axis=0))")
    )
]
_EXPECTED_NORM = "LATTICE / np.maximum(norms, norm_bound**2)"
WRONG_COMPLETIONS = [
    # One record moves the mean, and with it all others that have a gap.
    _completed(
        "gaps_filled_with_the_mean_of_the_site",
        (_PREPARED, "x = (np.where(np.isnan(rows), np.nanmean(X, axis=0), rows) - centre) / scale"),
    ),
    _completed(
        "a_model_of_the_site_itself",
        (
            "model = Model((np.eye(d) - W) / scales, spreads)",
            "model = Model((np.eye(d) - W) / scales, np.nanstd(X, axis=0))",
        ),
    ),
    _completed("expected_records_not_shortened", (_EXPECTED_NORM, "LATTICE / norm_bound**2 * np.ones(len(norms))")),
    _completed(
        "what_is_uncertain_added_whole", ("V if usable.any()", "V * (norms.max() / norm_bound**2) if usable.any()")
    ),
    _completed("uncertainty_left_out_of_the_norm", (" + np.square(V).sum()", "")),
]


@contextmanager
def paid_after_drawing(folder: Path) -> Iterator[None]:
    early = ("        # Reserve before drawing:", "        payload = draw()\n        # Reserve before drawing:")
    changed = rewritten(
        run_journal,
        folder,
        early,
        ("        payload = draw()\n        self._payments.store", "        self._payments.store"),
    )
    with mock.patch.object(run_journal, "RunJournal", changed.RunJournal):
        yield


@contextmanager
def drawn_again_for_the_same_round(folder: Path) -> Iterator[None]:
    changed = rewritten(run_journal, folder, ("if kept is not None:", "if False:"))
    with mock.patch.object(run_journal, "RunJournal", changed.RunJournal):
        yield


@contextmanager
def setup_released_anew_after_a_restart(folder: Path) -> Iterator[None]:
    changed = rewritten(run_journal, folder, ("if kept is not None:", "if kept is not None and t:"))
    with mock.patch.object(run_journal, "RunJournal", changed.RunJournal):
        yield

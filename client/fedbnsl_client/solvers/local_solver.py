"""Make the solver that a plan asks for, and the release that a private one has to start from."""

from collections.abc import Callable
from functools import partial

import numpy as np

from fedbnsl.errors import LocalProtocolError
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl.privacy.calibration import Price
from fedbnsl.protocol.sparse import Mask, Matrix, SparseMatrix
from fedbnsl_client.data.mapped_array import sum_over_rows
from fedbnsl_client.data.person_rows import PersonRows, Table
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.privacy import grid_products, many_gaussians
from fedbnsl_client.privacy.noise import (
    ExponentialMechanism,
    Noise,
    NoisyMax,
    Randbelow,
    Selection,
    discrete_gaussian,
    discrete_laplace,
    rounded_gaussian,
)
from fedbnsl_client.privacy.private_moments import release_covariance, release_second_moments
from fedbnsl_client.solvers import dp_pgcd, frank_wolfe, pgcd
from fedbnsl_client.solvers.dp_pgcd import DpPgcd
from fedbnsl_client.solvers.settings import Settings

LocalSolver = Callable[[SparseMatrix, SparseMatrix, SparseMatrix], SparseMatrix]
"""Minimises the local objective (Eq. Bp) of one site: B_p, W and beta_p to the new B_p."""

# An estimated second moment counts as at least this share of its bound: with noise it may come out as zero or less.
_SMALLEST_SHARE = 0.005


def warm_up() -> None:
    """Compile every kernel that a plan may ask for, or load it from the cache, so that no round waits for it."""
    pgcd.warm_up()
    frank_wolfe.warm_up()
    dp_pgcd.warm_up()
    many_gaussians.warm_up()
    grid_products.warm_up()


def local_solver(plan: Plan, loss: SecondMoments, allowed: Mask) -> LocalSolver:
    """The solver of a plan without privacy, or one on released moments."""
    if plan.dense_messages:
        from fedbnsl_client.solvers.closed_form import ClosedForm  # here: the only solver that needs scipy

        closed_form = ClosedForm.of(loss, plan.consensus_penalty)
        return lambda B, W, beta: SparseMatrix.from_dense(closed_form.solve(W.to_dense(), beta.to_dense()))
    settings = Settings.of(plan, allowed)
    if plan.local_solver == "frank-wolfe":
        return lambda B, W, beta: SparseMatrix.from_dense(
            frank_wolfe.solve(loss, B.to_dense(), W.to_dense(), beta.to_dense(), settings)[0]
        )
    return lambda B, W, beta: pgcd.solve(loss, B, W, beta, settings)[0]


def needs_setup(plan: Plan) -> bool:
    """Whether the solver starts from its own private release."""
    privacy = plan.privacy
    return privacy is not None and (plan.local_solver == "noisy-covariance" or privacy.smoothness == "estimated")


def release_setup(plan: Plan, privacy: Privacy, price: Price, X: Table, randbelow: Randbelow) -> Matrix:
    """What a run releases once: the covariance, (d, d), for noisy-covariance, otherwise the (d,) second moments."""
    if plan.local_solver == "noisy-covariance":
        return release_covariance(X, privacy.row_norm_bound, price.setup_variance, randbelow)
    bounds = np.broadcast_to(np.array(privacy.feature_bounds), X.shape[1:])
    return release_second_moments(X, bounds, price.setup_variance, randbelow)


def private_solver(
    plan: Plan, privacy: Privacy, price: Price, X: Table, allowed: Mask, setup: Matrix | None, randbelow: Randbelow
) -> LocalSolver | DpPgcd:
    """The solver of a private plan; `setup` is what `release_setup` gave, for a plan that needs it."""
    if plan.local_solver == "noisy-covariance":
        if setup is None:  # without its release the solver has no input; never use another mechanism instead
            raise LocalProtocolError("noisy-covariance starts from its released covariance, which is missing")
        return local_solver(plan, SecondMoments(setup), allowed)
    selection: Selection
    noise: Noise
    if plan.local_solver == "dp-pgcd":
        selection = ExponentialMechanism(price.sharpness, allowed)
        noise = update_noise(price)
    else:  # dp-pgcd-laplace
        selection = NoisyMax(price.sharpness, allowed)
        noise = partial(discrete_laplace, price.update_scale)
    return DpPgcd(
        X,
        _second_moments(plan, privacy, X, setup) + plan.consensus_penalty,
        Settings.of(plan, allowed),
        clip=privacy.clip,
        selection=selection,
        noise=noise,
        randbelow=randbelow,
    )


def update_noise(price: Price) -> Noise:
    """Noise on the gradient of a dp-pgcd step: Gaussian DP holds for rounded normal noise, not for discrete noise."""
    return partial(rounded_gaussian if price.gaussian else discrete_gaussian, price.update_variance)


def require_usable(
    plan: Plan, privacy: Privacy, X: Table, setup: Matrix | None, B: Matrix, W: Matrix, beta: Matrix
) -> None:
    """Refuse (d, d) values that private steps could not start from; see `dp_pgcd.require_usable`. Reads no record."""
    if plan.local_solver == "noisy-covariance" or privacy.smoothness == "exact":
        return
    M = _second_moments(plan, privacy, X, setup) + plan.consensus_penalty
    sensitivity = dp_pgcd.score_sensitivity(M, clip=privacy.clip, lam=plan.l1_weight, n_samples=X.shape[0])
    dp_pgcd.require_usable(B, W, beta, M=M, rho_2=plan.consensus_penalty, sensitivity=sensitivity)


def _second_moments(plan: Plan, privacy: Privacy, X: Table, setup: Matrix | None) -> Matrix:
    """(d,) exact (an uncharged release), estimated (`setup`) or public (from the plan), as the plan says.

    Prepared columns have variance 1, up to the noise of their scales: that is public, too.
    """
    shape = X.shape[1:]
    if plan.preparation is not None:
        return np.ones(shape)
    if privacy.smoothness == "exact":
        if isinstance(X, PersonRows):
            return np.asarray(sum(means.sum(axis=0) for means in X.means(np.square)) / len(X))
        return np.asarray(sum_over_rows(X, lambda X: (X * X).sum(axis=0)) / len(X))
    if setup is None:
        return np.broadcast_to(np.array(privacy.second_moments), shape)
    return np.maximum(setup, _SMALLEST_SHARE * np.broadcast_to(np.array(privacy.feature_bounds), shape))

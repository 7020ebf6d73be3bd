"""The tables of `bench networks`: generated and published linear Gaussian networks, with noise of any variances.

No plan was tuned on the seeds that are run by default: for tuning, take seeds from 100 on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_research.tables.published import network_names, read_network
from fedbnsl_research.trials.harness import N_SAMPLES
from fedbnsl_workbench.tables.synthetic import synthesise

N_SITES = 8

_NOISE = (0.5, 2.0)
_SMALL = 0.3
_WITHIN = 6.0  # standard deviations on both sides of the mean that the range of a variable allows
_ALWAYS = ("ecoli70", "magic-niab")  # without FEDBNSL_DATA, the remedy is said
_SIZES = {"8x5000": (N_SITES, N_SAMPLES), "8x1000": (N_SITES, 1000), "5x100": (5, 100)}


@dataclass(frozen=True, eq=False)
class Drawn:
    """The tables of one seed, and what they were drawn from.

    Attributes
    ----------
    variables
        d names.
    tables
        One (n, d) table a site.
    graph
        (d, d) true DAG.
    ranges
        What anybody knows of the variables before a table is drawn: needed by private plans.
    """

    variables: tuple[str, ...]
    tables: tuple[Matrix, ...]
    graph: Mask
    ranges: Dictionary


@dataclass(frozen=True)
class Case:
    """What one row of the figure is about.

    Attributes
    ----------
    title
        As it is printed.
    draw
        The tables of a seed.
    epsilon
        Budget of the plan `private`; None: the plan is `standard`.
    seeds
        Those that are run unless others are asked for.
    """

    title: str
    draw: Callable[[int], Drawn]
    epsilon: float | None = None
    seeds: Sequence[int] = range(10)


def generated(
    seed: int,
    *,
    d: int,
    expected_edges: int,
    noise: tuple[float, float] = _NOISE,
    weight_size: float = 1.0,
) -> Drawn:
    """Tables of an Erdos-Renyi graph; each column is standardised over all sites, so that its scale tells nothing."""
    drawn = synthesise(d, expected_edges, N_SITES, N_SAMPLES, seed, noise_range=noise, weight_size=weight_size)
    whole = np.concatenate(drawn.tables)
    mean, std = whole.mean(axis=0), whole.std(axis=0)
    tables = tuple((X - mean) / std for X in drawn.tables)
    return Drawn(drawn.variables, tables, drawn.W != 0, _ranges(drawn.variables, np.zeros(d), np.ones(d)))


def published(seed: int, *, name: str, size: tuple[int, int]) -> Drawn:
    """Tables of a published network, in its own units.

    Raises
    ------
    ResultError
        If FEDBNSL_DATA does not hold it.
    """
    network = read_network(name)
    n_sites, n_rows = size
    tables = network.tables((n_rows,) * n_sites, np.random.default_rng(seed))
    ranges = _ranges(network.variables, network.mean, network.std)
    return Drawn(network.variables, tuple(tables), network.W != 0, ranges)


def _ranges(variables: Sequence[str], mean: Matrix, std: Matrix) -> Dictionary:
    limits = np.stack([mean - _WITHIN * std, mean + _WITHIN * std], axis=1).tolist()
    return Dictionary.from_plain(
        {name: {"range": ends} for name, ends in zip(variables, limits, strict=True)}, origin="the law of the tables"
    )


def all_cases() -> dict[str, Case]:
    """By name, in the order in which they are run."""
    sizes = f"P={N_SITES}, {N_SAMPLES} rows a site"
    noise = f"noise sd {_NOISE[0]:g} to {_NOISE[1]:g}"
    ten, three = range(10), range(3)
    found: dict[str, Case] = {}
    for d, seeds in ((20, ten), (50, ten), (100, ten), (200, three)):
        title = f"ER d={d}, degree 2, {noise}, {sizes}"
        found[f"er{d}"] = Case(title, partial(generated, d=d, expected_edges=d), seeds=seeds)
    found["er50-degree8"] = Case(
        f"ER d=50, degree 8, {noise}, {sizes}", partial(generated, d=50, expected_edges=200), seeds=ten
    )
    names = list(dict.fromkeys([*_ALWAYS, *network_names()]))
    for name in names:
        for label, size in _SIZES.items():
            found[f"{name}-{label}"] = Case(
                f"{name}, P={size[0]}, {size[1]} rows a site", partial(published, name=name, size=size)
            )
    found["small12"] = Case(
        f"ER d=12, 16 edges, weights x{_SMALL:g}, noise sd 1, {sizes}",
        partial(generated, d=12, expected_edges=16, noise=(1.0, 1.0), weight_size=_SMALL),
    )
    found["small20"] = Case(
        f"ER d=20, degree 2, weights x{_SMALL:g}, {noise}, {sizes}",
        partial(generated, d=20, expected_edges=20, weight_size=_SMALL),
    )
    for epsilon in (10.0, 5.0, 1.0):
        private = f"epsilon {epsilon:g}, {sizes}"
        found[f"er20-epsilon{epsilon:g}"] = Case(
            f"ER d=20, degree 2, {noise}, {private}", partial(generated, d=20, expected_edges=20), epsilon
        )
        for name in names:
            draw = partial(published, name=name, size=(N_SITES, N_SAMPLES))
            found[f"{name}-epsilon{epsilon:g}"] = Case(f"{name}, {private}", draw, epsilon)
        if epsilon < 10.0:
            found[f"er100-epsilon{epsilon:g}"] = Case(
                f"ER d=100, degree 2, {noise}, {private}", partial(generated, d=100, expected_edges=100), epsilon
            )
    found["er200-equal-epsilon1"] = Case(
        f"ER d=200, degree 2, noise sd 1, epsilon 1, {sizes}",
        partial(generated, d=200, expected_edges=200, noise=(1.0, 1.0)),
        1.0,
        three,
    )
    return found

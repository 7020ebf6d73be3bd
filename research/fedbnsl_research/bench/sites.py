"""How a coordinator's work grows with the sites, and with the non-zeros that they send."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.sparse import formula_bytes
from fedbnsl_research.bench.load import measured
from fedbnsl_research.bench.processes import MIB
from fedbnsl_research.trials.harness import Row, exponent, megabytes_sent

_SITES = (500, 1000, 2000)
_VARIABLES = 50
_ROUNDS = 5
_FIXED_SITES = 250
_SEND_TOLERANCES = (0.0, 0.01, 0.03, 0.1)


@dataclass(frozen=True)
class Cost:
    """What one run cost its coordinator; processor times are of its process alone.

    Attributes
    ----------
    joining_s
        Seconds of the processor until all sites but one had joined.
    round_s, processor_s
        Seconds of a round, on the wall and of the processor; the end of the run is spread over its rounds.
    global_s
        Seconds of a round's global step and duals, in one process without a network.
    nonzeros
        Received a round, of all sites.
    megabytes
        A round, both ways.
    highest_bytes
        Most resident memory.
    """

    n_sites: int
    joining_s: float
    round_s: float
    processor_s: float
    global_s: float
    nonzeros: float
    megabytes: float
    highest_bytes: int


def sites() -> Iterator[Row]:
    """Runs with an increasing number of sites, then runs with a fixed number that send fewer and fewer non-zeros."""
    plan = Plan.load("fed-sparse").with_settings(rounds=_ROUNDS, refit_rounds=0)
    yield from by_sites([_cost(plan, n_sites) for n_sites in _SITES])
    few = [plan.with_settings(send_tolerance=tolerance) for tolerance in _SEND_TOLERANCES]
    yield by_nonzeros([_cost(sparser, _FIXED_SITES) for sparser in few])


def _cost(plan: Plan, n_sites: int) -> Cost:
    result, alone, readings = measured(plan, n_sites=n_sites, n_variables=_VARIABLES, recorded=True)
    n_rounds = len(result["rounds"])
    return Cost(
        n_sites=n_sites,
        joining_s=readings.joined.cpu_s - readings.idle.cpu_s,
        round_s=result["seconds"]["total"] / n_rounds,
        processor_s=(readings.last.cpu_s - readings.joined.cpu_s) / n_rounds,
        global_s=alone["seconds"]["global"] / n_rounds,
        nonzeros=result["bytes"]["up"]["formula"] / formula_bytes(1, _VARIABLES) / n_rounds,
        megabytes=megabytes_sent(result, "serialised") / n_rounds,
        highest_bytes=readings.last.highest_bytes,
    )


def by_sites(costs: Sequence[Cost]) -> Iterator[Row]:
    """A row for each number of sites, and how the costs grow: linear is an exponent of 1, and a ratio of 1."""
    for cost in costs:
        yield {
            "figure": f"a coordinator with {cost.n_sites} sites, d={_VARIABLES}",
            "s of the processor to join": round(cost.joining_s, 2),
            "ms a round": round(1e3 * cost.round_s),
            "ms of the processor a round": round(1e3 * cost.processor_s),
            "ms of the global step": round(1e3 * cost.global_s, 1),
            "non-zeros a round": round(cost.nonzeros),
            "us of the processor a non-zero": round(_us_a_nonzero(cost), 2),
            "MB a round": round(cost.megabytes, 2),
            "MiB at most": round(cost.highest_bytes / MIB),
        }
    first, last, n_sites = costs[0], costs[-1], [cost.n_sites for cost in costs]
    yield {
        "figure": f"processor time a non-zero: {last.n_sites} sites / {first.n_sites} sites, d={_VARIABLES}",
        "ratio": round(_us_a_nonzero(last) / _us_a_nonzero(first), 2),
        "exponent of a round in the sites": exponent(n_sites, [cost.processor_s for cost in costs]),
        "of joining": exponent(n_sites, [cost.joining_s for cost in costs]),
        "of the global step": exponent(n_sites, [cost.global_s for cost in costs]),
    }


def by_nonzeros(costs: Sequence[Cost]) -> Row:
    """A straight line through the processor time a round over the non-zeros received."""
    nonzeros = np.array([cost.nonzeros for cost in costs])
    spent_s = np.array([cost.processor_s for cost in costs])
    slope, start = np.polyfit(nonzeros, spent_s, 1)
    n_sites = costs[0].n_sites
    return {
        "figure": f"processor time a round over the non-zeros received, {n_sites} sites, d={_VARIABLES}",
        "us a non-zero": round(1e6 * slope, 2),
        "us a site beside": round(1e6 * start / n_sites),
        "largest deviation": f"{np.abs(start + slope * nonzeros - spent_s).max() / spent_s.max():.0%}",
        "non-zeros": " ".join(f"{count:.0f}" for count in nonzeros),
        "ms": " ".join(f"{1e3 * spent:.0f}" for spent in spent_s),
    }


def _us_a_nonzero(cost: Cost) -> float:
    return 1e6 * cost.processor_s / cost.nonzeros

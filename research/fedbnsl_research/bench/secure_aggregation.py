"""Secure aggregation: what the smaller noise does to the graph, what the noise is by each step, and what a sum costs.

All graphs are judged on seeds that nothing was tuned on; noise is that of the graph's seed.
"""

import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial

from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy import gaussian_dp, zcdp
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol.messages import LocalUpdate, Loss, Membership, RoundTask, SiteState
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import randomness
from fedbnsl_client.secure_aggregation import keys
from fedbnsl_client.secure_aggregation.masks import masked
from fedbnsl_research.bench.network_cases import Drawn, all_cases
from fedbnsl_research.bench.networks import class_found
from fedbnsl_research.trials.harness import N_SAMPLES, Row, by_seed, run_plan, run_row
from fedbnsl_server.algorithm.admm import AdmmState, without
from fedbnsl_server.run import round_loop
from fedbnsl_server.run.secure_aggregation import SecureSites
from fedbnsl_server.sites.mailbox import UpdateCheck
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.simulate import InProcessExchange
from fedbnsl_workbench.tables.synthetic import synthesise

# d, rows a site, epsilon, seeds: one delta, 1 / rows^2, with and without.
_GRAPHS = (
    (20, 500, 1.0, range(2, 12)),
    (20, N_SAMPLES, 0.1, range(2, 12)),
    (100, N_SAMPLES, 1.0, range(2, 6)),
    (200, N_SAMPLES, 1.0, range(2, 4)),
)
_N_SITES = 8
_NETWORKS, _NETWORK_SEEDS = ("ecoli70-epsilon1", "magic-niab-epsilon1"), range(3)
_EPSILONS = (0.5, 1.0, 5.0, 10.0)
_SITES = (3, 8, 20, 50)
_COLUMNS = 20


def secure_aggregation() -> Iterator[Row]:
    """Graphs with and without, the noise by its causes, bytes and seconds."""
    for epsilon in _EPSILONS:
        yield noise(epsilon)
    for n_sites in _SITES:
        yield cost(n_sites)
    yield lost_site(_N_SITES)
    for setting in _GRAPHS:
        yield graphs(*setting)
    for name in _NETWORKS:
        yield network(name)


def plan_of(name: str, *, epsilon: float, delta: float, shared: bool) -> Plan:
    """A plan with secure aggregation, or without them and otherwise the same."""
    settings = [f"privacy.delta={delta}", f"privacy.secure_aggregation={json.dumps(shared)}"]
    return Plan.load(name, settings, epsilon=epsilon)


def noise(epsilon: float) -> Row:
    """Noise of the moments of all rounds together, as a share of what the paper's conversion asks for, step by step."""
    delta = 1.0 / N_SAMPLES**2
    alone, shared = (plan_of("private-moments", epsilon=epsilon, delta=delta, shared=one) for one in (False, True))
    one, other = (price_of(plan, n_samples=N_SAMPLES, n_variables=_COLUMNS) for plan in (alone, shared))
    paper = paper_budget(epsilon, delta)
    steps = {
        "optimal conversion of zCDP": math.sqrt(paper / zcdp.budget(epsilon, delta)),
        "Gaussian DP": math.sqrt(zcdp.budget(epsilon, delta) / gaussian_dp.budget(epsilon, delta)),
        "all rounds count, not the last alone": 1.0 / math.sqrt(alone.moments_rounds),
        "secure aggregation, 8 sites, 2 of them colluding": 1.0 / math.sqrt(shared.n_honest),
        "a round kept for a site that is lost": math.sqrt(one.moments_units / other.moments_units),
    }
    found: Row = {
        "figure": f"noise of private moments, epsilon {epsilon:g}, delta {delta:g}; the paper's conversion: 1"
    }
    share = 1.0
    for name, factor in steps.items():
        share *= factor
        found[name] = f"x {factor:.3f}: {share:.3f}"
    found["noise of a release, with / without"] = round(math.sqrt(other.moments_variance / one.moments_variance), 3)
    return found


def paper_budget(epsilon: float, delta: float) -> float:
    """The zCDP that zcdp + 2 sqrt(zcdp log(1 / delta)), the paper's conversion, turns into epsilon."""
    log = math.log(1.0 / delta)
    return (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2


def cost(n_sites: int) -> Row:
    """Bytes of a run and of a round, and seconds that masks take at a site."""
    federation = synthesise(_COLUMNS, _COLUMNS, n_sites, 500, 2)
    rows: list[Row] = []
    for shared in (False, True):
        plan = plan_of("private-moments", epsilon=10.0, delta=1e-6, shared=shared)
        result = run_plan(plan.with_settings(n_participants=n_sites), federation, noise_seed=2)
        whole = sum(result["bytes"][way]["serialised"] for way in ("up", "down"))
        of_a_round = [one["up"]["serialised"] for one in result["rounds"][-1]["bytes"].values()]
        rows.append(
            {
                "whole run, bytes a site": round(whole / n_sites),
                "round of moments, bytes up a site": round(statistics.mean(of_a_round)),
            }
        )
    before, now = rows
    private = [keys.new_private_key() for _ in range(n_sites)]
    memberships = [Membership(f"site-{k}", 500, public_key=keys.public_key(key)) for k, key in enumerate(private)]
    numbers = [1] * (_COLUMNS * (_COLUMNS + 1) // 2)
    started = time.thread_time()
    masked(numbers, site=memberships[0].site, private_key=private[0], memberships=memberships, context=b"bench")
    return {
        "figure": f"secure aggregation of {len(numbers)} numbers, d={_COLUMNS}, P={n_sites}, keys without certificates",
        **{f"{name}, without": value for name, value in before.items()},
        **now,
        "ms of masks at a site, a round": round(1e3 * (time.thread_time() - started), 2),
    }


class SiteLostError(Exception):
    """A site has not answered; all others have."""


class LosingExchange(InProcessExchange):
    """Sites of which one answers no more from a round on."""

    def __init__(self, plan: Plan, participants: Mapping[str, Participant], *, gone: str, lost_in: int) -> None:
        super().__init__(plan, participants, run=1)
        self._gone, self._lost_in = gone, lost_in

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        """See `Exchange.exchange`; raises SiteLostError once all others have answered the round."""
        there = {site: task for site, task in tasks.items() if site != self._gone or task.round != self._lost_in}
        updates = super().exchange(there, snapshots, check)
        if len(there) < len(tasks):
            raise SiteLostError
        return updates


def lost_site(n_sites: int) -> Row:
    """What it costs the others to lose a site in the last round, and what every run pays to be able to."""
    federation = synthesise(_COLUMNS, _COLUMNS, n_sites, 500, 2)
    plan = plan_of("private-moments", epsilon=10.0, delta=1e-6, shared=True).with_settings(n_participants=n_sites)
    sites = [f"site-{k}" for k in range(n_sites)]
    datasets = {s: Dataset(federation.variables, X) for s, X in zip(sites, federation.tables, strict=True)}
    participants = {
        s: Participant(s, data, plan, run=1, randbelow=randomness.seeded(s)) for s, data in datasets.items()
    }
    last = n_rounds(plan)
    exchange = LosingExchange(plan, participants, gone=sites[0], lost_in=last)
    rows, states = dict.fromkeys(sites, 500), list[AdmmState]()
    play = partial(round_loop.run, plan, federation.variables, exchange=exchange)
    with suppress(SiteLostError):
        play(rows, on_round=lambda state, record: states.append(state))
    before, started = exchange.traffic.up[sites[1]][last], time.perf_counter()
    del rows[sites[0]]
    state = without(states[-1], sites[:1])
    play(rows, on_round=lambda state, record: None, state=state, secure=SecureSites(lost=(Loss(sites[0], last),)))
    seconds = time.perf_counter() - started
    privacy = plan.model_dump()["privacy"]
    never = plan.with_settings(privacy={**privacy, "secure_aggregation_retries": 0})
    price, cheaper = (price_of(one, n_samples=500, n_variables=_COLUMNS) for one in (plan, never))
    return {
        "figure": f"a site lost in the last round, d={_COLUMNS}, P={n_sites}",
        "bytes up again, each of the others": exchange.traffic.up[sites[1]][last] - before,
        "s of the round that is asked anew, with its search": round(seconds, 2),
        "share of the price that is kept for it": round(price.reserve / price.units, 3),
        "noise of a release, with / without secure_aggregation_retries": round(
            math.sqrt(price.moments_variance / cheaper.moments_variance), 3
        ),
    }


def graphs(d: int, n_rows: int, epsilon: float, seeds: range) -> Row:
    """SHD on generated graphs of equal noise variances."""
    found: Row = {
        "figure": f"private moments, epsilon {epsilon:g}, d={d}, {_N_SITES} x {n_rows} rows, seeds "
        f"{seeds.start}..{seeds.stop - 1}"
    }
    for shared, label in ((False, ", without"), (True, "")):
        plan = plan_of("private-moments", epsilon=epsilon, delta=1.0 / n_rows**2, shared=shared)
        rows = [
            run_row(run_plan(plan, federation, noise_seed=seed), federation)
            for seed in seeds
            for federation in [synthesise(d, d, _N_SITES, n_rows, seed)]
        ]
        found[f"SHD{label}"] = round(statistics.mean(row["shd"] for row in rows), 2)
        found[f"SHD by seed{label}"] = by_seed(rows, "shd")
        found[f"s a run{label}"] = round(statistics.mean(row["seconds"] for row in rows), 1)
    return found


def network(name: str) -> Row:
    """CPDAG SHD and skeleton F1 on a published network."""
    case = all_cases()[name]
    found: Row = {"figure": f"{case.title}, plan private, seeds {_NETWORK_SEEDS.start}..{_NETWORK_SEEDS.stop - 1}"}
    for shared, label in ((False, ", without"), (True, "")):
        judged = [_judged(case.draw(seed), seed, float(case.epsilon or 0.0), shared=shared) for seed in _NETWORK_SEEDS]
        found[f"CPDAG SHD{label}"] = round(statistics.mean(distance for distance, _ in judged), 2)
        found[f"CPDAG SHD by seed{label}"] = " ".join(str(distance) for distance, _ in judged)
        found[f"skeleton F1{label}"] = round(statistics.mean(f1 for _, f1 in judged), 3)
    return found


def _judged(drawn: Drawn, seed: int, epsilon: float, *, shared: bool) -> tuple[int, float]:
    plan = plan_of("private", epsilon=epsilon, delta=1.0 / N_SAMPLES**2, shared=shared)
    result = run_plan(plan.with_settings(dictionary=drawn.ranges.model_dump()), drawn, noise_seed=seed)
    marks = class_found(result)
    return class_distance(marks, cpdag(drawn.graph)), score(marks, drawn.graph).skeleton_f1 or 0.0

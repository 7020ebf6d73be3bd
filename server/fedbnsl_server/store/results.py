"""What a run writes while it goes on, and what it leaves behind.

Beside plan.toml, run.json, events.jsonl and checkpoint.npz (see `fedbnsl_server.store.run_folder`) a run folder holds

result.json      everything about the run, for programs (schema `fedbnsl.result/1`)
weights.csv      the raw W of the last ADMM round (without any: the weights of the last searched graph); row = source,
                 column = target
edges.csv        the learned edges: source,target,weight
graph.graphml, graph.dot, dagitty.txt, lgbn.json    the same graph for other tools; lgbn.json only where the residual
                 variances are known (result.json says under `not_written` why they are not)
"""

import hashlib
import json
import platform
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from fedbnsl import durable
from fedbnsl.errors import InterruptedRunError, ResultError
from fedbnsl.graphs import files as graph_files
from fedbnsl.graphs.formats import ORIENTATION, LearnedGraph
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.privacy import zcdp
from fedbnsl.privacy.calibration import price_of
from fedbnsl.privacy.report import guarantee_sentence, guarantees
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl.sparse import formula_bytes
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph, consensus_graph, graph_to_refit, raw_weights
from fedbnsl_server.algorithm.round_loop import RoundRecord
from fedbnsl_server.findings import as_entries, sentences
from fedbnsl_server.search.pooled_moments import NOISE_WIDTHS, least_noise
from fedbnsl_server.sites import membership_log
from fedbnsl_server.sites.mailbox import Traffic
from fedbnsl_server.sites.roster import Member
from fedbnsl_server.store import checkpoint
from fedbnsl_server.store.run_folder import LOCK, RunFolder

SCHEMA = "fedbnsl.result/1"

# The largest residual variance over the smallest, beyond which a result warns.
_UNEQUAL_VARIANCES = 2.0

# Not in the manifest: the log goes on after the results, and the lock holds nothing.
_UNHASHED = ("events.jsonl", "result.json", LOCK)

_PACKAGES = ("fedbnsl", "numpy", "scipy", "numba", "grpcio", "protobuf")


class RunRecorder:
    """Writes a run's folder: event and state after each round, results at the end.

    Parameters
    ----------
    folder
        Its past, if it has one, is part of the results.
    created_at
        When the run began; None: now.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        run: int,
        seeds: Mapping[str, int] | None = None,
        created_at: datetime | None = None,
    ) -> None:
        self._folder = folder
        self._plan = folder.plan
        self._past = folder.past
        self._run = run
        self._seeds = dict(seeds or {})
        self._variables: tuple[str, ...] = ()
        self._n_samples: dict[str, int] = {}
        self._traffic = Traffic()
        self._uncounted = ["the run did not begin"]
        self._outcome = ""
        self._rounds: list[dict[str, Any]] = list(self._past.rounds)
        self._state = self._past.state
        self._created_at = created_at or datetime.now(UTC)
        self._started = self._last_round = 0.0
        # Rounds are recorded on the engine's thread, while an interruption ends the run on another.
        self._lock = threading.Lock()
        self._ended = False

    def start(
        self,
        variables: Sequence[str],
        n_samples: Mapping[str, int],
        traffic: Traffic,
        *,
        uncounted: Sequence[str] = (),
    ) -> None:
        """All sites are there: the first round, or the one after the last that is complete, is about to begin.

        Parameters
        ----------
        uncounted
            Why a private plan gives no guarantee in this run after all; empty: it does.
        """
        self._uncounted = list(uncounted)
        self._variables, self._n_samples, self._traffic = tuple(variables), dict(sorted(n_samples.items())), traffic
        self._started = self._last_round = time.perf_counter()
        if not self._rounds:
            self._folder.events.write("started", variables=list(variables), n_samples=self._n_samples)

    def on_round(self, state: AdmmState, record: RoundRecord) -> None:
        """Note the round, then save the state: a round counts once it is in the checkpoint, and then has its line.

        Raises
        ------
        InterruptedRunError
            If the results are written already: the round is not among them, and nobody is to be told of it.
        """
        with self._lock:
            if self._ended:
                raise InterruptedRunError(f"round {record.round} was complete after the run had ended")
            self._last_round = time.perf_counter()
            entry = self._round(record)
            control = {site: self._traffic.control[site] for site in self._n_samples}
            self._folder.events.write("round", **entry, elapsed_s=self._elapsed_s(), control_bytes=control)
            self._folder.events.sync()
            checkpoint.save(self._folder.checkpoint, state, plan_digest=self._plan.digest())
            self._state = state
            self._rounds.append(entry)

    def event(self, name: str, **fields: object) -> None:
        """Note something else; every field must be known to the coordinator anyway."""
        with self._lock:
            if not self._ended:
                self._folder.events.write(name, **fields)

    def seat(self, site: str, member: Member | None) -> None:
        """Note a seat that was taken or (None) freed; it is on the disk when this returns.

        Raises
        ------
        ResultError
            If it cannot be written.
        """
        with self._lock:
            if not self._ended:
                membership_log.note(self._folder.events, site, member)

    def finish(self, outcome: str, reason: str = "") -> dict[str, Any]:
        """Write the results as they stand and return what result.json holds.

        Parameters
        ----------
        outcome
            "finished", "interrupted" or "failed".
        reason
            One public sentence, unless finished.
        """
        with self._lock:
            return self._finish(outcome, reason)

    def pause(self) -> dict[str, Any]:
        """Write the results as they stand, of a run that will be continued, and return what result.json holds."""
        with self._lock:
            t = len(self._rounds)
            return self._finish("interrupted", f"paused after round {t}" if t else "paused before round 1")

    def _finish(self, outcome: str, reason: str) -> dict[str, Any]:
        self._ended = True
        self._outcome = outcome
        graph = self._graph()
        unwritten: ResultError | None = None
        try:
            if graph is not None and self._state is not None:
                try:
                    self._write_graph(graph, self._state)
                except ResultError as error:  # raised below: first result.json says what happened
                    unwritten, outcome, reason = error, "failed", str(error)
            result = self._result(outcome, reason, graph)
            text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            durable.write_text(self._folder.path / "result.json", text)
            self._folder.events.write(outcome, reason=reason)
        finally:
            self._folder.events.close()
        if unwritten is not None:
            raise unwritten
        return result

    def _elapsed_s(self) -> float:
        """Seconds of all rounds, without the time between two lives of the coordinator."""
        return round(self._past.elapsed_s + self._last_round - self._started, 6)

    def _mask(self) -> EdgeMask:
        return EdgeMask(self._plan.knowledge, self._variables)

    def _graph(self) -> ConsensusGraph | None:
        return None if self._state is None else consensus_graph(self._state, self._plan, self._mask())

    def _write_graph(self, graph: ConsensusGraph, state: AdmmState) -> None:
        variance = state.residual_variance
        learned = LearnedGraph(self._variables, graph.dag, graph.weights, variance if variance.size else None)
        graph_files.write_all(learned, self._folder.path)
        W = raw_weights(state, self._plan).to_dense()
        graph_files.write_weights(self._variables, W, self._folder.path / "weights.csv")

    def _round(self, record: RoundRecord) -> dict[str, Any]:
        d = len(self._variables)
        t = record.round
        contributed = set(record.contributed)
        down = formula_bytes(record.entries_down, d, indexed=record.indexed_down)
        findings = as_entries(record.findings, self._variables)
        return {
            **({"findings": findings} if findings else {}),
            "round": t,
            "kind": record.kind,
            "contributed": list(record.contributed),
            "acyclicity": record.acyclicity,
            "edges": record.edges,
            "local_s": round(record.local_s, 6),
            "global_s": round(record.global_s, 6),
            "bytes": {
                site: {
                    "up": {
                        "formula": formula_bytes(record.entries_up.get(site, 0), d, indexed=record.indexed_up),
                        "serialised": self._traffic.up[site][t],
                    },
                    "down": {
                        # A site that is away pulls nothing. One that answers has pulled, maybe before a restart.
                        "formula": down if self._traffic.down[site][t] or site in contributed else 0,
                        "serialised": self._traffic.down[site][t],
                    },
                }
                for site in self._n_samples
            },
        }

    def _count_late(self) -> None:
        """Updates that came after their round had closed crossed the wire all the same."""
        for entry in self._rounds:
            for site, counted in entry["bytes"].items():
                counted["up"]["serialised"] = self._traffic.up[site][entry["round"]]

    def _result(self, outcome: str, reason: str, graph: ConsensusGraph | None) -> dict[str, Any]:
        names = self._variables
        self._count_late()
        rounds, contributions = self._rounds, self._contributions()
        return {
            "schema": SCHEMA,
            "state": outcome,
            "reason": reason,
            "orientation": ORIENTATION,
            "variables": list(names),
            "edges": [] if graph is None else named_edges(graph, names),
            "dropped_edges": self._dropped(graph),
            "warnings": self._warnings(),
            "not_written": {} if self._state is None else self._not_written(self._state),
            "privacy": self._privacy(),
            "acyclicity": None if self._state is None else self._state.acyclicity,
            "sites": {
                site: {
                    "n_samples": n,
                    "rounds_contributed": len(contributions[site]),
                    "bytes": _total([entry["bytes"][site] for entry in rounds]),
                    "control_bytes": self._traffic.control[site],
                }
                for site, n in self._n_samples.items()
            },
            "bytes": {
                **_total([entry["bytes"][site] for entry in rounds for site in self._n_samples]),
                "control": sum(self._traffic.control.values()),
                "meaning": "formula: entries x (8 + ceil(log2(d^2) / 8)) bytes (dense: d^2 x 8), as in the paper; 8 "
                "a moment; serialised: protobuf bytes of updates and tasks, site names, scales and residual "
                "variances included; control: protobuf bytes of all other messages until the results were written",
            },
            "seconds": {
                "total": self._elapsed_s(),
                "local": round(sum(entry["local_s"] for entry in rounds), 6),
                "global": round(sum(entry["global_s"] for entry in rounds), 6),
            },
            "rounds": rounds,
            "manifest": {
                "run": f"{self._run:016x}",
                "plan_digest": self._plan.digest().hex(),
                "private": self._plan.privacy is not None and not self._no_guarantee(),
                "seeds": self._seeds,
                "versions": _versions(),
                "created_at": self._created_at.isoformat(timespec="seconds"),
                "resumed_at": list(self._past.resumed_at),
                "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "sha256": {
                    file.name: hashlib.sha256(file.read_bytes()).hexdigest()
                    for file in sorted(self._folder.path.iterdir())
                    if file.is_file() and file.name not in _UNHASHED
                },
            },
        }

    def _contributions(self) -> dict[str, list[int]]:
        """The rounds that each site contributed to."""
        rounds: dict[str, list[int]] = {site: [] for site in self._n_samples}
        for entry in self._rounds:
            for site in entry["contributed"]:
                rounds[site].append(entry["round"])
        return rounds

    def _no_guarantee(self) -> list[str]:
        exact = self._plan.privacy is not None and not guarantees(self._plan)
        return [*self._uncounted, *(["second moments were used exactly, which nobody paid for"] if exact else [])]

    def _privacy(self) -> dict[str, Any] | None:
        """What each site's table has lost at most, in one sentence and in numbers; null without privacy."""
        if self._plan.privacy is None or not self._n_samples:
            return None
        d, reasons = len(self._variables), self._no_guarantee()
        rounds = len(self._rounds)
        if self._outcome != "finished":
            # Sites may have answered and paid for the interrupted round. A continued folder may be a restored backup,
            # so sites may have paid for any later round, too.
            rounds = n_rounds(self._plan) if self._folder.is_continued else rounds + 1
        rounds = min(rounds, n_rounds(self._plan))
        sites: dict[str, Any] = {}
        contributions = self._contributions()
        for site, n in self._n_samples.items():
            price = price_of(self._plan, n_samples=n, n_variables=d)
            answered = contributions[site]
            sites[site] = {
                "epsilon": price.epsilon,
                "delta": price.delta,
                "price_zcdp": zcdp.zcdp_of(price.units),
                "contributed_zcdp": zcdp.zcdp_of(sum(map(price.units_of, [0, *answered])) if answered else 0),
            }
        return {
            "guarantee": "" if reasons else guarantee_sentence(self._plan, d, min(self._n_samples.values()), rounds),
            "no_guarantee_because": reasons,
            "sites": sites,
        }

    def _warnings(self) -> list[str]:
        """What a person should know before believing the edges and their directions."""
        without = [f"no privacy guarantee: {reason}" for reason in self._no_guarantee() if self._plan.privacy]
        without += self._too_much_noise() + sentences(self._rounds)
        variance = np.empty(0) if self._state is None else self._state.residual_variance
        if not variance.size or variance.max() <= _UNEQUAL_VARIANCES * variance.min():
            return without
        low, high = (f"{self._variables[k]} {variance[k]:.3g}" for k in (variance.argmin(), variance.argmax()))
        # A search takes its directions from the moments where these tell them.
        which = "directions that the moments leave open rest" if self._plan.moments_rounds else "directions rest"
        return [*without, f"residual variances differ ({low}, {high}): {which} on their being about equal"]

    def _not_written(self, state: AdmmState) -> dict[str, str]:
        """Files of the graph that the run has no numbers for, with the reason."""
        if state.residual_variance.size:
            return {}
        plan = self._plan
        if plan.privacy is not None and plan.moments_rounds:
            why = "the noisy moments tell them up to a common factor only"
        elif plan.privacy is not None:
            why = "releasing them would cost privacy"
        elif self._outcome != "finished":
            why = f"the run ended before its {'search' if plan.moments_rounds else 'refit'}"
        else:
            why = "the plan has no refit"
        return {graph_files.LGBN: f"it needs the residual variances, which are unknown: {why}"}

    def _too_much_noise(self) -> list[str]:
        """Whether the noise of private moments hides edges that the plan looks for; from public numbers alone."""
        plan, d, rows = self._plan, len(self._variables), list(self._n_samples.values())
        if plan.privacy is None or not plan.moments_rounds or not rows:
            return []
        prices = [price_of(plan, n_samples=n, n_variables=d) for n in rows]
        hidden = NOISE_WIDTHS * least_noise([price.moments_variance for price in prices], rows, d)
        if hidden <= plan.threshold:
            return []
        return [
            f"the noise hides correlations of residuals below {hidden:.2g}, which is more than the threshold "
            f"{plan.threshold:g}: most edges are lost, for want of rows, sites or epsilon"
        ]

    def _dropped(self, graph: ConsensusGraph | None) -> list[dict[str, Any]]:
        """Edges that were left out to break cycles: before the refit, and at the end."""
        if graph is None or self._state is None:
            return []
        W = self._state.global_weights.to_dense()
        dropped = [("graph", edge) for edge in graph.dropped]
        if self._state.refitted is not None and self._plan.refit_rounds:
            before = graph_to_refit(replace(self._state, refitted=None), self._plan, self._mask())
            dropped = [("refit", edge) for edge in before.dropped] + dropped
        return [
            {"source": self._variables[i], "target": self._variables[j], "weight": float(W[i, j]), "before": stage}
            for stage, (i, j) in dropped
        ]


def _versions() -> dict[str, str]:
    """What this process runs on; a coordinator's image has no compiler of kernels."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def named_edges(graph: ConsensusGraph, variables: Sequence[str]) -> list[dict[str, Any]]:
    """Edges by name, by decreasing absolute weight."""
    pairs = [(int(i), int(j)) for i, j in zip(*graph.dag.nonzero(), strict=True)]
    pairs.sort(key=lambda edge: (-abs(graph.weights[edge]), edge))
    return [{"source": variables[i], "target": variables[j], "weight": float(graph.weights[i, j])} for i, j in pairs]


def _total(entries: Sequence[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    return {
        direction: {kind: sum(entry[direction][kind] for entry in entries) for kind in ("formula", "serialised")}
        for direction in ("up", "down")
    }

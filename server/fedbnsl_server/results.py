"""The run folder: what a run writes while it goes on, and what it leaves behind.

plan.toml        the settings, as agreed
events.jsonl     what happened when, one JSON object a line
checkpoint.npz   the state after the last complete round
result.json      everything about the run, for programs (schema `fedbnsl.result/1`)
weights.csv      the raw W of the last ADMM round; row = source, column = target
edges.csv        the learned edges: source,target,weight
graph.graphml, graph.dot, dagitty.txt, lgbn.json    the same graph for other tools
"""

import hashlib
import json
import platform
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedbnsl import graph_files, zcdp
from fedbnsl.errors import ResultError
from fedbnsl.graph_formats import ORIENTATION, LearnedGraph
from fedbnsl.knowledge import EdgeMask
from fedbnsl.logs import EventLog
from fedbnsl.plan import Plan
from fedbnsl.price import price_of
from fedbnsl.price_report import guarantee_sentence, guarantees
from fedbnsl.sparse import formula_bytes
from fedbnsl_server import checkpoint
from fedbnsl_server.admm import AdmmState
from fedbnsl_server.consensus_graph import ConsensusGraph, consensus_graph, graph_to_refit
from fedbnsl_server.exchange import Traffic
from fedbnsl_server.rounds import RoundRecord

SCHEMA = "fedbnsl.result/1"

# The largest residual variance over the smallest, beyond which a result warns.
_UNEQUAL_VARIANCES = 2.0

_PACKAGES = ("fedbnsl", "numpy", "scipy", "numba", "grpcio", "protobuf")


class RunFolder:
    """A new folder for one run."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self.plan = plan
        self.events = EventLog(path / "events.jsonl")

    @classmethod
    def create(cls, path: Path, plan: Plan) -> Self:
        """Make the folder and write the plan.

        Raises
        ------
        ResultError
            If the folder holds a run already, or cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            refuse_existing_run(path)
            (path / "plan.toml").write_text(plan.to_toml(), encoding="utf-8")
            return cls(path, plan)
        except OSError as error:
            raise ResultError(f"run folder {path} cannot be written: {error.strerror}") from None

    @property
    def checkpoint(self) -> Path:
        """Where the state of the run is kept."""
        return self.path / "checkpoint.npz"


def default_folder(name: str) -> Path:
    """runs/<name>-<UTC time>, of which a person makes sense."""
    readable = re.sub(r"[^\w.-]+", "-", name).strip(".-")[:50] or "run"
    return Path("runs") / f"{readable}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def refuse_existing_run(path: Path) -> None:
    """Results are never overwritten.

    Raises
    ------
    ResultError
        If the folder holds a run or a graph already.
    """
    try:
        if any((path / name).exists() for name in ("plan.toml", "result.json", "edges.csv")):
            raise ResultError(f"folder {path} holds a run already; results are never overwritten")
    except OSError as error:
        raise ResultError(f"run folder {path} cannot be used: {error.strerror}") from None


class RunRecorder:
    """Writes a run's folder: state and event after each round, results at the end."""

    def __init__(self, folder: RunFolder, *, run: int, seeds: Mapping[str, int] | None = None) -> None:
        self._folder = folder
        self._plan = folder.plan
        self._run = run
        self._seeds = dict(seeds or {})
        self._variables: tuple[str, ...] = ()
        self._n_samples: dict[str, int] = {}
        self._traffic = Traffic()
        self._uncounted = ["the run did not begin"]
        self._outcome = ""
        self._records: list[RoundRecord] = []
        self._state: AdmmState | None = None
        self._created_at = datetime.now(UTC)
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
        """All sites are there: the first round is about to begin.

        Parameters
        ----------
        uncounted
            Why a private plan gives no guarantee in this run after all; empty: it does.
        """
        self._uncounted = list(uncounted)
        self._variables, self._n_samples, self._traffic = tuple(variables), dict(sorted(n_samples.items())), traffic
        self._started = self._last_round = time.perf_counter()
        self._folder.events.write("started", variables=list(variables), n_samples=self._n_samples)

    def on_round(self, state: AdmmState, record: RoundRecord) -> None:
        """Save the state, then note the round."""
        with self._lock:
            if self._ended:
                return
            checkpoint.save(self._folder.checkpoint, state, plan_digest=self._plan.digest())
            self._state = state
            self._last_round = time.perf_counter()
            self._records.append(record)
            self._folder.events.write("round", **self._round(record))

    def event(self, name: str, **fields: object) -> None:
        """Note something else; every field must be known to the coordinator anyway."""
        with self._lock:
            if not self._ended:
                self._folder.events.write(name, **fields)

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
            self._ended = True
            self._outcome = outcome
            graph = self._graph()
            unwritten: ResultError | None = None
            if graph is not None and self._state is not None:
                try:
                    self._write_graph(graph, self._state)
                except ResultError as error:  # raised below: first result.json says what happened
                    unwritten, outcome, reason = error, "failed", str(error)
            result = self._result(outcome, reason, graph)
            text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            graph_files.write_text(self._folder.path / "result.json", text)
            try:
                self._folder.events.write(outcome, reason=reason)
            finally:
                self._folder.events.close()
            if unwritten is not None:
                raise unwritten
            return result

    def _mask(self) -> EdgeMask:
        return EdgeMask(self._plan.knowledge, self._variables)

    def _graph(self) -> ConsensusGraph | None:
        return None if self._state is None else consensus_graph(self._state, self._plan, self._mask())

    def _write_graph(self, graph: ConsensusGraph, state: AdmmState) -> None:
        variance = state.residual_variance
        learned = LearnedGraph(self._variables, graph.dag, graph.weights, variance if variance.size else None)
        graph_files.write_all(learned, self._folder.path)
        graph_files.write_weights(self._variables, state.global_weights.to_dense(), self._folder.path / "weights.csv")

    def _round(self, record: RoundRecord) -> dict[str, Any]:
        d = len(self._variables)
        t = record.round
        down = formula_bytes(record.entries_down, d, dense=record.dense)
        return {
            "round": t,
            "kind": record.kind.name.lower(),
            "contributed": list(record.contributed),
            "acyclicity": record.acyclicity,
            "edges": record.edges,
            "local_s": round(record.local_s, 6),
            "global_s": round(record.global_s, 6),
            "bytes": {
                site: {
                    "up": {
                        "formula": formula_bytes(record.entries_up.get(site, 0), d, dense=record.dense),
                        "serialised": self._traffic.up[site][t],
                    },
                    "down": {
                        "formula": down if self._traffic.down[site][t] else 0,  # a site that is away pulls nothing
                        "serialised": self._traffic.down[site][t],
                    },
                }
                for site in self._n_samples
            },
        }

    def _result(self, outcome: str, reason: str, graph: ConsensusGraph | None) -> dict[str, Any]:
        names = self._variables
        rounds = [self._round(record) for record in self._records]
        return {
            "schema": SCHEMA,
            "state": outcome,
            "reason": reason,
            "orientation": ORIENTATION,
            "variables": list(names),
            "edges": [] if graph is None else named_edges(graph, names),
            "dropped_edges": self._dropped(graph),
            "warnings": self._warnings(),
            "privacy": self._privacy(),
            "acyclicity": None if self._state is None else self._state.acyclicity,
            "sites": {
                site: {
                    "n_samples": n,
                    "rounds_contributed": sum(site in record.contributed for record in self._records),
                    "bytes": _total([entry["bytes"][site] for entry in rounds]),
                    "control_bytes": self._traffic.control[site],
                }
                for site, n in self._n_samples.items()
            },
            "bytes": {
                **_total([entry["bytes"][site] for entry in rounds for site in self._n_samples]),
                "control": sum(self._traffic.control.values()),
                "meaning": "formula: entries x (8 + ceil(log2(d^2) / 8)) bytes (dense: d^2 x 8), as in the paper; "
                "serialised: protobuf bytes of updates and tasks, site names and a refit's residual variances "
                "included; control: protobuf bytes of all other messages until the results were written",
            },
            "seconds": {
                "total": round(self._last_round - self._started, 6),
                "local": round(sum(record.local_s for record in self._records), 6),
                "global": round(sum(record.global_s for record in self._records), 6),
            },
            "rounds": rounds,
            "manifest": {
                "run": f"{self._run:016x}",
                "plan_digest": self._plan.digest().hex(),
                "private": self._plan.privacy is not None and not self._no_guarantee(),
                "seeds": self._seeds,
                "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
                "created_at": self._created_at.isoformat(timespec="seconds"),
                "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "sha256": {
                    file.name: hashlib.sha256(file.read_bytes()).hexdigest()
                    for file in sorted(self._folder.path.iterdir())
                    if file.is_file() and file.name not in ("events.jsonl", "result.json")
                },
            },
        }

    def _no_guarantee(self) -> list[str]:
        exact = self._plan.privacy is not None and not guarantees(self._plan)
        return [*self._uncounted, *(["second moments were used exactly, which nobody paid for"] if exact else [])]

    def _privacy(self) -> dict[str, Any] | None:
        """What each site's table has lost at most, in one sentence and in numbers; null without privacy."""
        if self._plan.privacy is None or not self._n_samples:
            return None
        d, reasons = len(self._variables), self._no_guarantee()
        # A round that broke off may have been answered: it was paid for all the same.
        rounds = min(len(self._records) + (0 if self._outcome == "finished" else 1), self._plan.rounds)
        sites: dict[str, Any] = {}
        for site, n in self._n_samples.items():
            price = price_of(self._plan, n_samples=n, n_variables=d)
            answered = sum(site in record.contributed for record in self._records)
            sites[site] = {
                "epsilon": price.epsilon,
                "delta": price.delta,
                "price_zcdp": zcdp.zcdp_of(price.units),
                "contributed_zcdp": zcdp.zcdp_of((price.setup_units + answered * price.round_units) if answered else 0),
            }
        return {
            "guarantee": "" if reasons else guarantee_sentence(self._plan, d, min(self._n_samples.values()), rounds),
            "no_guarantee_because": reasons,
            "sites": sites,
        }

    def _warnings(self) -> list[str]:
        """What a person should know before believing the directions of the edges."""
        without = [f"no privacy guarantee: {reason}" for reason in self._no_guarantee() if self._plan.privacy]
        variance = np.empty(0) if self._state is None else self._state.residual_variance
        if not variance.size or variance.max() <= _UNEQUAL_VARIANCES * variance.min():
            return without
        low, high = (f"{self._variables[k]} {variance[k]:.3g}" for k in (variance.argmin(), variance.argmax()))
        return [*without, f"residual variances differ ({low}, {high}): directions rest on their being about equal"]

    def _dropped(self, graph: ConsensusGraph | None) -> list[dict[str, Any]]:
        """Edges that were left out to break cycles: before the refit, and at the end."""
        if graph is None or self._state is None:
            return []
        W = self._state.global_weights.to_dense()
        dropped = [("graph", edge) for edge in graph.dropped]
        if self._state.refitted is not None:
            before = graph_to_refit(replace(self._state, refitted=None), self._plan, self._mask())
            dropped = [("refit", edge) for edge in before.dropped] + dropped
        return [
            {"source": self._variables[i], "target": self._variables[j], "weight": float(W[i, j]), "before": stage}
            for stage, (i, j) in dropped
        ]


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

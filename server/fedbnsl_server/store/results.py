"""Writes a run's events and state after each round, and its results at the end.

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
import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from fedbnsl import __version__, durable
from fedbnsl.errors import InterruptedRunError, ResultError
from fedbnsl.graphs import files as graph_files
from fedbnsl.graphs.formats import ORIENTATION, LearnedGraph
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.privacy import zcdp
from fedbnsl.privacy.calibration import price_of
from fedbnsl.privacy.report import guarantee_sentence, guarantees
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl.security_log import NAME
from fedbnsl.sparse import formula_bytes
from fedbnsl.versions import own_versions
from fedbnsl_server.algorithm.admm import AdmmState, without
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph, consensus_graph, graph_to_refit, raw_weights
from fedbnsl_server.algorithm.round_loop import RoundRecord
from fedbnsl_server.findings import as_entries, sentences
from fedbnsl_server.influence import as_entry, many_rows, outliers, table
from fedbnsl_server.search.pooled_moments import NOISE_WIDTHS, least_noise
from fedbnsl_server.sites import membership_log
from fedbnsl_server.sites.ejection import Ejected
from fedbnsl_server.sites.mailbox import Traffic
from fedbnsl_server.sites.roster import Member
from fedbnsl_server.store import checkpoint, orders
from fedbnsl_server.store.history import TURNED_OUT
from fedbnsl_server.store.run_folder import LOCK, RunFolder
from fedbnsl_server.store.shortage import shortage

SCHEMA = "fedbnsl.result/1"

# The largest residual variance over the smallest, beyond which a result warns.
_UNEQUAL_VARIANCES = 2.0

_NOISY_VARIANCES = (
    "variances were computed from noisy moments of a private run, which cost no further privacy; none is below one "
    "standard deviation of its noise"
)

# Not in the manifest: the logs are still written after the results, and the lock is empty.
_UNHASHED = ("events.jsonl", "result.json", LOCK, NAME, orders.ORDER, orders.ANSWER)

_PACKAGES = ("numba", "grpcio", "protobuf")  # beside what a run's bits depend on


class RunRecorder:
    """Writes a run's folder: event and state after each round, results at the end.

    Parameters
    ----------
    folder
        Rounds that are complete in it already are part of the results.
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
        self._site_versions = {site: member.versions for site, member in self._past.membership.members.items()}
        self._traffic = Traffic()
        self._uncounted = ["the run did not begin"]
        self._outcome = ""
        self._rounds: list[dict[str, Any]] = list(self._past.rounds)
        self._unsaved: dict[str, Any] | None = None  # of a round that has its line, but is not in the checkpoint
        self._state = self._past.state
        self._ejected: list[Ejected] = list(self._past.membership.ejected)
        self._unfinished: tuple[Ejected, AdmmState | None] | None = None  # has its line, and the state to go on from
        self._turned_out = dict(self._past.turned_out)
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
        """Note that all sites have joined, and that the next round begins.

        Parameters
        ----------
        uncounted
            Why a private plan gives no guarantee in this run; empty: it gives one.
        """
        self._uncounted = list(uncounted)
        self._variables, self._n_samples, self._traffic = tuple(variables), dict(sorted(n_samples.items())), traffic
        self._started = self._last_round = time.perf_counter()
        if not self._rounds:
            self._folder.events.write("started", variables=list(variables), n_samples=self._n_samples)

    def on_round(self, state: AdmmState, record: RoundRecord) -> None:
        """Write the round's event, then save the state: a round counts once it is in the checkpoint.

        May be called again after a ResultError: it then goes on where it stood.

        Raises
        ------
        InterruptedRunError
            If the results are written already: the round is not part of them and must not be announced.
        ResultError
            If line or state cannot be written.
        """
        with self._lock:
            if self._ended:
                raise InterruptedRunError(f"round {record.round} was complete after the run had ended")
            if self._unsaved is None:
                self._last_round = time.perf_counter()
                entry = self._round(record)
                control = {site: self._traffic.control[site] for site in self._n_samples}
                self._folder.events.write("round", **entry, elapsed_s=self._elapsed_s(), control_bytes=control)
                self._folder.events.sync()
                self._unsaved = entry
            checkpoint.save(self._folder.checkpoint, state, plan_digest=self._plan.digest())
            self._folder.keep_checkpoint(state.round)
            self._state = state
            self._rounds.append(self._unsaved)
            self._unsaved = None

    @property
    def state(self) -> AdmmState | None:
        """After the last round that counts; None: before the first."""
        return self._state

    @property
    def rounds(self) -> Sequence[Mapping[str, Any]]:
        """What result.json says of each complete round."""
        return self._rounds

    @property
    def ejected(self) -> Sequence[Ejected]:
        """Sites that were taken out of the run."""
        return self._ejected

    def eject(self, ejected: Ejected) -> AdmmState | None:
        """Take a site out, and with it all later rounds than `after_round`; the state that the run goes on from.

        The line in events.jsonl counts. A crash between it and the checkpoint is mended when the run is taken up. May
        be called again after a ResultError: it then goes on where it stood.

        Raises
        ------
        ResultError
            If an earlier checkpoint cannot be read, or something cannot be written.
        InterruptedRunError
            If the results are written already.
        """
        with self._lock:
            if self._ended:
                raise InterruptedRunError(f"{ejected.site} was to be ejected after the run had ended")
            folder = self._folder
            if self._unfinished is None or self._unfinished[0].order != ejected.order:
                after, state = ejected.after_round, self._state
                if state is not None and after < state.round:
                    state = checkpoint.load(folder.kept.file(after), plan_digest=self._plan.digest()) if after else None
                if state is not None:
                    state = without(state, [ejected.site, *(one.site for one in self._ejected)])
                membership_log.note_ejected(folder.events, ejected)
                self._unfinished = ejected, state
            ejected, state = self._unfinished
            if state is None:
                folder.forget_checkpoint()
            else:
                checkpoint.save(folder.checkpoint, state, plan_digest=self._plan.digest())
            folder.kept.forget_after(ejected.after_round)
            self._unfinished = None
            after = ejected.after_round
            self._ejected = [*(one.set_back(after) for one in self._ejected), ejected]
            self._turned_out = {site: min(t, after) for site, t in self._turned_out.items()}
            self._state = state
            del self._rounds[after:]
            self._n_samples.pop(ejected.site, None)
            return state

    def turned_out(self, site: str) -> None:
        """Note that the enrolment of a site has ended, and that what it has contributed stays in the run.

        Raises
        ------
        ResultError
            If it cannot be written.
        """
        with self._lock:
            if not self._ended:
                self._turned_out[site] = len(self._rounds)
                self._folder.events.write(TURNED_OUT, site=site, after_round=len(self._rounds))

    def event(self, name: str, **fields: object) -> None:
        """Note another event; its fields may hold only what the coordinator knows anyway."""
        with self._lock:
            if not self._ended:
                self._folder.events.write(name, **fields)

    def probe(self) -> None:
        """Find out, by a line of its own, whether a line can be written and put on the disk.

        Raises
        ------
        ResultError
            If it cannot.
        """
        with self._lock:
            if not self._ended:
                self._folder.events.write("notice", text="there is room for seats again")
                self._folder.events.sync()

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
                if member is None:
                    self._site_versions.pop(site, None)
                else:
                    self._site_versions[site] = member.versions

    def finish(self, outcome: str, reason: str = "") -> dict[str, Any]:
        """Write the results so far and return what result.json holds.

        Parameters
        ----------
        outcome
            "finished", "interrupted" or "failed".
        reason
            One public sentence, unless finished.

        Raises
        ------
        ResultError
            If they cannot be written. If that is for want of room (`shortage`), it may be called again.
        """
        with self._lock:
            return self._finish(outcome, reason)

    def pause(self) -> dict[str, Any]:
        """Write the results so far of a run that will be continued, and return what result.json holds."""
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
                except ResultError as error:
                    if shortage(error):
                        raise
                    # Raised below: first result.json says what happened.
                    unwritten, outcome, reason = error, "failed", str(error)
            result = self._result(outcome, reason, graph)
            text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            durable.write_text(self._folder.path / "result.json", text)
            self._folder.events.write(outcome, reason=reason)
        except BaseException as error:
            if not shortage(error):
                self._folder.events.close()
            raise
        self._folder.events.close()
        if unwritten is not None:
            raise unwritten
        return result

    def _elapsed_s(self) -> float:
        """Seconds of all rounds, without the time in which no coordinator ran."""
        return round(self._past.elapsed_s + self._last_round - self._started, 6)

    def _mask(self) -> EdgeMask:
        return EdgeMask(self._plan.knowledge, self._variables)

    def _graph(self) -> ConsensusGraph | None:
        return None if self._state is None else consensus_graph(self._state, self._plan, self._mask())

    def _write_graph(self, graph: ConsensusGraph, state: AdmmState) -> None:
        variance = state.residual_variance
        learned = LearnedGraph(
            self._variables,
            graph.dag,
            graph.weights,
            variance if variance.size else None,
            variance_note=_NOISY_VARIANCES if self._plan.privacy else "",
        )
        graph_files.write_all(learned, self._folder.path)
        W = raw_weights(state, self._plan).to_dense()
        graph_files.write_weights(self._variables, W, self._folder.path / "weights.csv")

    def _round(self, record: RoundRecord) -> dict[str, Any]:
        d = len(self._variables)
        t = record.round
        contributed = set(record.contributed)
        down = formula_bytes(record.entries_down, d, indexed=record.indexed_down)
        findings = as_entries(record.findings, self._variables)
        influence = as_entry(record.influence, self._variables)
        return {
            **({"findings": findings} if findings else {}),
            **({"influence": influence} if influence else {}),
            **({"left_out": list(record.left_out)} if record.left_out else {}),
            "round": t,
            "kind": record.kind,
            "contributed": list(record.contributed),
            "acyclicity": _finite(record.acyclicity),
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
        """Count the bytes of updates that came after their round had closed, too."""
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
            "influence": table(self._rounds, self._n_samples),
            "not_written": {} if self._state is None else self._not_written(self._state),
            "privacy": self._privacy(),
            "acyclicity": None if self._state is None else _finite(self._state.acyclicity),
            "sites": {
                site: {"n_samples": n, "rounds_contributed": len(contributions[site]), **self._sent(site)}
                for site, n in self._n_samples.items()
            },
            "ejected": [
                {
                    "site": one.site,
                    "after_round": one.after_round,
                    "from_round": one.from_round,
                    "n_samples": one.n_samples,
                    "rounds_contributed": sum(one.site in entry["contributed"] for entry in rounds),
                    **self._sent(one.site),
                    "time": one.time,
                }
                for one in self._ejected
            ],
            "bytes": {
                **_total([counted for entry in rounds for counted in entry["bytes"].values()]),
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
                "site_versions": {site: dict(told) for site, told in sorted(self._site_versions.items())},
                "created_at": self._created_at.isoformat(timespec="seconds"),
                "resumed_at": list(self._past.resumed_at),
                "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "sha256": {
                    file.name: hashlib.sha256(file.read_bytes()).hexdigest()
                    for file in sorted(self._folder.path.iterdir())
                    if file.is_file() and not file.name.startswith(_UNHASHED)
                },
            },
        }

    def _sent(self, site: str) -> dict[str, Any]:
        """Bytes of a site, also of one that was ejected: of the rounds that are still in the record."""
        there = [entry["bytes"][site] for entry in self._rounds if site in entry["bytes"]]
        return {"bytes": _total(there), "control_bytes": self._traffic.control[site]}

    def _contributions(self) -> dict[str, list[int]]:
        """The rounds that each site contributed to."""
        rounds: dict[str, list[int]] = {site: [] for site in self._n_samples}
        for entry in self._rounds:
            for site in rounds.keys() & set(entry["contributed"]):
                rounds[site].append(entry["round"])
        return rounds

    def _no_guarantee(self) -> list[str]:
        if self._plan.privacy is None or guarantees(self._plan):
            return self._uncounted
        return [*self._uncounted, "second moments were used exactly, without being charged to the budget"]

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
        # An ejected site has paid for what it sent all the same.
        rows = {**{one.site: one.n_samples for one in self._ejected if one.n_samples}, **self._n_samples}
        for site, n in sorted(rows.items()):
            price = price_of(self._plan, n_samples=n, n_variables=d)
            answered = [entry["round"] for entry in self._rounds if site in entry["contributed"]]
            sites[site] = {
                "epsilon": price.epsilon,
                "delta": price.delta,
                "price_zcdp": zcdp.zcdp_of(price.units),
                "contributed_zcdp": zcdp.zcdp_of(sum(map(price.units_of, [0, *answered])) if answered else 0),
            }
        return {
            "guarantee": "" if reasons else guarantee_sentence(self._plan, d, min(rows.values()), rounds),
            "no_guarantee_because": reasons,
            "sites": sites,
        }

    def _warnings(self) -> list[str]:
        """What a person should know before believing the edges and their directions."""
        found = outliers(table(self._rounds, self._n_samples)) + many_rows(self._n_samples)
        found += [f"no privacy guarantee: {reason}" for reason in self._no_guarantee() if self._plan.privacy]
        found += self._of_sites_that_went() + self._too_much_noise() + sentences(self._rounds) + self._other_versions()
        variance = np.empty(0) if self._state is None else self._state.residual_variance
        if not variance.size or variance.max() <= _UNEQUAL_VARIANCES * variance.min():
            return found
        low, high = (f"{self._variables[k]} {variance[k]:.3g}" for k in (variance.argmin(), variance.argmax()))
        # A search takes its directions from the moments where these tell them.
        which = "directions that the moments leave open rest" if self._plan.moments_rounds else "directions rest"
        noisy = ", from noisy moments," if self._plan.privacy else ""
        return [*found, f"residual variances{noisy} differ ({low}, {high}): {which} on their being about equal"]

    def _of_sites_that_went(self) -> list[str]:
        """Sites that were ejected, and those whose enrolment ended but whose contributions stay."""
        gone = {one.site for one in self._ejected}
        contributions = self._contributions()
        return [one.sentence for one in self._ejected] + [
            f"{site} lost its enrolment after round {t}: what it had contributed stays in the result"
            for site, t in self._turned_out.items()
            if site not in gone and contributions.get(site)
        ]

    def _other_versions(self) -> list[str]:
        """Sites with another fedbnsl, or one that told none: then the results need not be the same bit for bit."""
        other = [
            f"{site} {told.get('fedbnsl', 'unknown')}"
            for site, told in sorted(self._site_versions.items())
            if told.get("fedbnsl") != __version__
        ]
        if not other:
            return []
        return [
            f"the parties ran different versions of fedbnsl (coordinator {__version__}; {', '.join(other)}): the same "
            "run need not give the same bits again"
        ]

    def _not_written(self, state: AdmmState) -> dict[str, str]:
        """Files of the graph that the run has no numbers for, with the reason."""
        if state.residual_variance.size:
            return {}
        plan = self._plan
        if plan.privacy is not None and not plan.moments_rounds:
            why = "releasing them would cost privacy"
        elif plan.privacy is not None and state.refitted is not None:
            why = "the noise hides them, or the released mean squares are too near feature_bounds to tell their size"
        elif self._outcome != "finished":
            why = f"the run ended before its {'search' if plan.moments_rounds else 'refit'}"
        else:
            why = "the plan has no refit"
        return {graph_files.LGBN: f"it needs the residual variances, which are unknown: {why}"}

    def _too_much_noise(self) -> list[str]:
        """Warn if the noise of private moments hides edges that the plan looks for, by public numbers alone."""
        plan, d, rows = self._plan, len(self._variables), list(self._n_samples.values())
        if plan.privacy is None or not plan.moments_rounds or not rows:
            return []
        prices = [price_of(plan, n_samples=n, n_variables=d) for n in rows]
        hidden = NOISE_WIDTHS * least_noise([price.moments_variance for price in prices], rows, d)
        if hidden <= plan.threshold:
            return []
        return [
            f"the noise hides correlations of residuals below {hidden:.2g}, which is more than the threshold "
            f"{plan.threshold:g}: most edges are lost; use more rows, more sites or a larger epsilon"
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


def _finite(value: float) -> float | None:
    """The value; None for one that left the finite numbers, which JSON does not know."""
    return value if math.isfinite(value) else None


def _versions() -> dict[str, str]:
    """What this process runs on; a coordinator's image has no numba."""
    found = own_versions()
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

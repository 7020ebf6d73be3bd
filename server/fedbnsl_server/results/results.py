"""Writes a run's events and state after each round, and its results at the end.

Beside plan.toml, run.json, events.jsonl and checkpoint.npz (see `fedbnsl_server.store.run_folder`) a run folder holds

result.json      everything about the run, for programs (schema `fedbnsl.result/1`)
weights.csv      the raw W of the last ADMM round (without any: the weights of the last searched graph) between columns,
                 in units of the tables; row = source, column = target
edges.csv        the learned edges between variables, and their shares of the bootstrap draws
strength.csv     these shares of all pairs, as bnlearn's boot.strength; only where there are draws
regressions.csv  odds ratios, rate ratios and mean differences; only where there are such numbers
network.json     the network as a distribution, which answers by itself; only where the means of columns are told
graph.graphml, graph.dot, dagitty.txt, lgbn.json    the same graph for other tools; lgbn.json only where the residual
                 variances are known (result.json says under `not_written` why they are not)
pag.csv, pag-tetrad.txt, pag-dagitty.txt    the marks that hold if common causes are hidden; only where they are told
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.errors import InterruptedRunError, ResultError, SetupError
from fedbnsl.files import durable
from fedbnsl.files.json_numbers import finite, not_finite
from fedbnsl.files.shortage import shortage
from fedbnsl.graphs.formats import ORIENTATION
from fedbnsl.network import NETWORK
from fedbnsl.privacy.report import guarantees
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_server.algorithm.admm import AdmmState, of_result, without
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph, consensus_graph
from fedbnsl_server.results import warnings
from fedbnsl_server.results.assumption_checks import assumption_checks
from fedbnsl_server.results.categories import categories_of
from fedbnsl_server.results.confidence import (
    estimation_of,
    fit_of,
    odd_site,
    paths,
    rarely_drawn,
    to_no_units,
    unidentified,
    unsure,
    with_confidence,
)
from fedbnsl_server.results.curves import curves_of
from fedbnsl_server.results.data_quality import data_quality
from fedbnsl_server.results.experiments import experiments_of, with_tests_of_directions
from fedbnsl_server.results.gaps import complete_cases, gaps_of, of_gaps
from fedbnsl_server.results.hidden_causes import hidden_causes_of
from fedbnsl_server.results.how_taken import how_taken
from fedbnsl_server.results.learned_graph import (
    dropped_edges,
    files_not_written,
    named_edges,
    network_content,
    write_graph,
)
from fedbnsl_server.results.noise import with_noise
from fedbnsl_server.results.outlier_scores import many_rows, outliers, table
from fedbnsl_server.results.outlying import outlying_notes, outlying_of
from fedbnsl_server.results.preparation import preparation_of
from fedbnsl_server.results.privacy_loss import privacy_loss
from fedbnsl_server.results.regressions import ratios_of, regressions_csv, with_differences, without_linear_tests
from fedbnsl_server.results.sentences import Note, in_words, note
from fedbnsl_server.results.unused import unused_entries, unused_notes
from fedbnsl_server.results.validation import validation_of
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_server.sites import membership_log
from fedbnsl_server.sites.ejection import Ejected, losses
from fedbnsl_server.sites.mailbox import Traffic
from fedbnsl_server.sites.roster import Member
from fedbnsl_server.store import checkpoint
from fedbnsl_server.store.history import TURNED_OUT
from fedbnsl_server.store.manifest import manifest
from fedbnsl_server.store.result_file import SCHEMA, with_defaults
from fedbnsl_server.store.round_entry import round_entry, total
from fedbnsl_server.store.run_folder import RunFolder


class _Told(NamedTuple):
    """What result.json says of the graph, as other parts and files need it, too."""

    edges: list[dict[str, Any]]
    regressions: list[dict[str, Any]]  # no mean differences of weights that are none
    categories: dict[str, Any] | None
    curves: dict[str, Any] | None

    @property
    def families(self) -> dict[str, str]:
        """What variables are given their parents, where this tells it better than straight lines."""
        bent = [{one["source"], one["target"]} for one in (self.curves["effects"] if self.curves else ())]
        ratios = [one for one in self.regressions if one["kind"] != "mean difference" and one["estimates"]]
        return {
            **{one["child"]: "regression" for one in ratios},
            **{edge["target"]: "curved" for edge in self.edges if {edge["source"], edge["target"]} in bent},
            **{name: "table" for name, one in (self.categories or {}).items() if one["parents"]},
        }


class RunRecorder:
    """Writes a run's folder: event and state after each round, results at the end.

    Rounds that are complete in the folder already are part of the results. The run began at `created_at`; None: now.
    `study` is what it belongs to.
    Every method that writes raises ResultError if it cannot.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        run: int,
        seeds: Mapping[str, int] | None = None,
        created_at: datetime | None = None,
        study: str = "",
    ) -> None:
        self._folder = folder
        self._plan = folder.plan
        self._past = folder.past
        self._run = run
        self._seeds = dict(seeds or {})
        self._study = study
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
        self.scored_network = ""  # that the sites get at the end, to score it; empty: they score none

    def start(
        self,
        variables: Sequence[str],
        n_samples: Mapping[str, int],
        traffic: Traffic,
        *,
        uncounted: Sequence[str] = (),
    ) -> None:
        """Note that all sites have joined, and that the next round begins.

        `uncounted` is why a private plan gives no guarantee in this run; empty: it gives one.
        """
        self._uncounted = list(uncounted)
        self._variables, self._n_samples, self._traffic = tuple(variables), dict(sorted(n_samples.items())), traffic
        self._started = self._last_round = time.perf_counter()
        if not self._rounds:
            self._folder.events.write("started", variables=list(variables), n_samples=self._n_samples)

    def on_round(self, state: AdmmState, record: RoundRecord) -> None:
        """Write the round's event, then save the state: a round counts once it is in the checkpoint.

        May be called again after a ResultError: it then goes on where it stood. InterruptedRunError: the results are
        written already, so that the round is not part of them and must not be announced.
        """
        with self._lock:
            if self._ended:
                raise InterruptedRunError(f"round {record.round} was complete after the run had ended")
            if self._unsaved is None:
                self._last_round = time.perf_counter()
                entry = round_entry(record, self._variables, self._n_samples, self._traffic)
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
        be called again after a ResultError: it then goes on where it stood. InterruptedRunError: the results are
        written already.
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
            self._site_versions.pop(ejected.site, None)
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
        """Note that the enrolment of a site has ended, and that what it has contributed stays in the run."""
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
        """Find out, by writing a line, whether a line can be written and put on the disk."""
        with self._lock:
            if not self._ended:
                self._folder.events.write("notice", text="there is room for memberships again")
                self._folder.events.sync()

    def membership(self, site: str, member: Member | None) -> None:
        """Note a membership that was taken or (None) freed; it is on the disk when this returns."""
        with self._lock:
            if not self._ended:
                membership_log.note(self._folder.events, site, member)
                if member is None:
                    self._site_versions.pop(site, None)
                else:
                    self._site_versions[site] = member.versions

    def network(self) -> str:
        """The learned network of the rounds so far as JSON; empty: it has no numbers, or rows are of another kind."""
        with self._lock:
            state, names = self._used
            if state is None:
                return ""
            graph = consensus_graph(state, self._plan, self._plan.edge_mask(names))
            told = self._told(graph)
            result = in_words(_without_gaps(self._result("finished", "", graph, told)))
            found = self._network(result, graph, state, told)
            if not self._ended:
                self._folder.events.write("network", sha256=sha256(found.encode()).hexdigest(), n_bytes=len(found))
            return found

    def _network(self, result: Mapping[str, Any], graph: ConsensusGraph, state: AdmmState, told: "_Told") -> str:
        content = network_content(graph, state, self._plan, told.families)
        if content is None:
            return ""
        from fedbnsl.network.fitted_network import FittedNetwork  # here: both load SciPy
        from fedbnsl_server.results.network_of_run import network_of

        try:
            found = network_of(with_defaults(result), content, self._plan).to_json()
            FittedNetwork.from_json(found)  # sites would refuse it
        except SetupError:  # the means are not told, or the rows are those of groups or of a series
            return ""
        except (ValueError, ArithmeticError, LookupError, ResultError) as error:
            # The run has its graph: what is wrong here costs it the scores, and not the result.
            if not self._ended:
                self._folder.events.write("no network", reason=f"{type(error).__name__}: {error}")
            return ""
        return found

    def _keep_network(self, text: str) -> None:
        if text:
            durable.write_text(self._folder.path / NETWORK, text)
        self.scored_network = "" if self._plan.validation == "none" else text

    def finish(self, outcome: str, reason: str = "") -> dict[str, Any]:
        """Write the results so far and return what result.json holds.

        `outcome` is "finished", "interrupted" or "failed", the latter two with one public sentence as the reason. After
        a ResultError for want of room (`shortage`) it may be called again.
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
        graph: ConsensusGraph | None = None
        state, names = self._used
        if state is not None:
            graph = consensus_graph(state, self._plan, self._plan.edge_mask(names))
        unwritten: ResultError | None = None
        try:
            told = self._told(graph)
            if graph is not None and state is not None:
                try:
                    write_graph(graph, state, self._plan, names, self._folder.path, told.families)
                    if told.regressions:
                        durable.write_text(self._folder.path / "regressions.csv", regressions_csv(told.regressions))
                except ResultError as error:
                    if shortage(error):
                        raise
                    # Raised below: first result.json says what happened.
                    unwritten, outcome, reason = error, "failed", str(error)
            result: dict[str, Any] = in_words(_without_gaps(self._result(outcome, reason, graph, told)))
            if graph is not None and state is not None and outcome == "finished":
                self._keep_network(
                    self._network(result, graph, state, told) if state.validation is None else state.validation.network
                )
                result["manifest"] = self._manifest()  # with that file
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

    @property
    def _used(self) -> tuple[AdmmState | None, tuple[str, ...]]:
        """The state and the names of the columns that the result is about."""
        if self._state is None:
            return None, self._variables
        return of_result(self._state, self._plan.columns(self._variables))

    @property
    def _unused(self) -> list[dict[str, Any]]:
        return [] if self._state is None else unused_entries(self._state.unused, self._plan, self._variables)

    def _elapsed_s(self) -> float:
        """Seconds of all rounds, without the time in which no coordinator ran."""
        return round(self._past.elapsed_s + self._last_round - self._started, 6)

    def _count_late(self) -> None:
        """Count the bytes of updates that came after their round had closed, too."""
        for entry in self._rounds:
            for site, counted in entry["bytes"].items():
                counted["up"]["serialised"] = self._traffic.up[site][entry["round"]]

    def _result(self, outcome: str, reason: str, graph: ConsensusGraph | None, told: "_Told") -> dict[str, Any]:
        self._count_late()
        (state, names), rounds = self._used, self._rounds
        columns = self._plan.columns(names)
        confidence = None if state is None else state.confidence
        variance = np.empty(0) if state is None else state.residual_variance
        left = state.curves.residual_variance if state is not None and state.curves is not None else variance
        influence = self._influence(told.regressions)
        warned, sites = self._warnings(told, influence, graph), experiments_of(state)
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "state": outcome,
            "reason": reason,
            "orientation": ORIENTATION,
            "variables": list(columns.variables),
            "columns": {name: columns.variables[v] for name, v in zip(names, columns.variable_of.tolist(), strict=True)}
            if columns.has_blocks
            else None,
            "units": {name: entry.measure for name, entry in self._plan.dictionary.items() if entry.measure},
            "levels": self._plan.dictionary.levels(columns.variables),
            "references": {
                **self._plan.dictionary.references(columns.variables),
                **{one["variable"]: one["level"] for one in self._unused if one["why"] == "reference"},
            },
            "graph_class": self._plan.graph_class,
            "verdict": {
                **with_tests_of_directions(
                    assumption_checks(
                        self._plan,
                        columns,
                        told.edges,
                        confidence,
                        variance,
                        unused=self._unused,
                        rows_left_out=self._rows_left_out(),
                        completion=None if state is None else state.completion,
                        regressions=told.regressions,
                        curvature=None if state is None else state.curvature,
                        noise=None if state is None else state.noise,
                        withheld=state is not None and state.counted is not None and state.counted.given_up,
                        choice=None if state is None or state.counted is None else state.counted.choice,
                        curves=told.curves,
                        categories=told.categories,
                        experiments=sites,
                    ),
                    self._plan,
                    state,
                    graph,
                ),
                "incomplete": self._ended_searches(),
                "few_rows": self._few_rows(),
                "outlying": list(outlying_notes(outlying_of(state, names))),
                "withheld": list(warnings.of_withheld_tables(state)),
                "complete_cases": complete_cases(state, self._plan, columns),
            },
            "edges": told.edges,
            "regressions": told.regressions,
            "rarely_drawn": rarely_drawn(confidence, columns),
            "unsure": [] if graph is None else unsure(confidence, graph, columns),
            "paths": paths(confidence, columns),
            "hidden_causes": hidden_causes_of(confidence, graph, columns),
            "experiments": sites,
            "fit": {} if graph is None else fit_of(confidence, graph, columns, left if left.size else variance),
            "estimation": estimation_of(confidence, columns),
            "unused": self._unused,
            "dropped_edges": dropped_edges(graph, state, self._plan, names),
            "preparation": preparation_of(state, self._plan, names),
            "gaps": gaps_of(state, self._plan, columns),
            "categories": told.categories,
            "curves": told.curves,
            "outlying": outlying_of(state, names),
            "validation": None if state is None else validation_of(state.validation),
            "warnings": warned,
            "warning_codes": [one.code for one in warned],
            "influence": influence,
            "not_written": files_not_written(graph, state, self._plan, self._outcome),
            "privacy": self._privacy(),
            "acyclicity": None if self._state is None else self._state.acyclicity,
            "sites": {site: {"n_samples": n, **self._part_of(site)} for site, n in self._n_samples.items()},
            "ejected": [
                {name: value for name, value in asdict(one).items() if name != "order"} | self._part_of(one.site)
                for one in self._ejected
            ],
            "bytes": {
                **total([counted for entry in rounds for counted in entry["bytes"].values()]),
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
            "manifest": self._manifest(),
        }
        return {**content, "taken": how_taken(content, self._plan, told.families)}

    def _manifest(self) -> dict[str, Any]:
        return manifest(
            self._folder,
            run=self._run,
            private=self._plan.privacy is not None and not self._no_guarantee(),
            seeds=self._seeds,
            site_versions=self._site_versions,
            created_at=self._created_at,
            study=self._study,
        )

    def _told(self, graph: ConsensusGraph | None) -> "_Told":
        state, names = self._used
        curves = curves_of(self._state, self._variables)
        categories = categories_of(self._state, self._plan, self._variables)
        if graph is None or state is None:
            return _Told([], [], categories, curves)
        columns, confidence = self._plan.columns(names), state.confidence
        named = named_edges(graph, columns, to_no_units(graph, confidence), unidentified(confidence, graph))
        ratios = ratios_of(graph, self._state, self._plan, self._variables, self._rows())
        edges = without_linear_tests(with_confidence(named, confidence, graph, columns), ratios)
        edges = with_noise(edges, state.noise)
        if confidence is not None:
            ratios = with_differences(ratios, edges, curves, columns, self._plan, self._rows())
        return _Told(edges, ratios, categories, curves)

    def _influence(self, regressions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        state, names = self._used
        confidence = None if state is None else state.confidence
        odd = odd_site(confidence, self._plan.columns(names), regressions)
        return {**table(self._rounds, self._n_samples, summed=self._plan.secure_aggregation), "odd": odd}

    def _part_of(self, site: str) -> dict[str, Any]:
        """Rows, rounds and bytes of a site, also of an ejected one: of the rounds that are still in the record.

        `rows_used` are those without a missing value; null where they are not known, as in private runs.
        """
        there = [entry["bytes"][site] for entry in self._rounds if site in entry["bytes"]]
        known = self._state is not None and self._plan.privacy is None
        return {
            "rows_used": self._state.complete_rows.get(site) if known and self._state else None,
            "rounds_contributed": sum(site in entry["contributed"] for entry in self._rounds),
            "bytes": total(there),
            "control_bytes": self._traffic.control[site],
        }

    def _rows_left_out(self) -> int:
        """Rows that are not used since they lack a value, at sites that have told."""
        if self._state is None or self._plan.uses_gaps or self._plan.privacy is not None:
            return 0
        return sum(self._n_samples[site] - n for site, n in self._state.complete_rows.items())

    def _no_guarantee(self) -> list[str]:
        if self._plan.privacy is None or guarantees(self._plan):
            return self._uncounted
        return [*self._uncounted, "second moments were used exactly, without being charged to the budget"]

    def _privacy(self) -> dict[str, Any] | None:
        """What each site's table has lost at most, in one sentence and in numbers; null without privacy."""
        if self._plan.privacy is None or not self._n_samples:
            return None
        rounds = len(self._rounds)
        if self._outcome != "finished":
            # Sites may have answered and paid for the interrupted round. A continued folder may be a restored backup,
            # so sites may have paid for any later round, too.
            rounds = n_rounds(self._plan) if self._folder.is_continued else rounds + 1
        lost = self._ejected if self._plan.secure_aggregation else []
        # An ejected site has paid for what it sent all the same.
        rows = {**{one.site: one.n_samples for one in self._ejected if one.n_samples}, **self._n_samples}
        return privacy_loss(
            self._plan,
            len(self._variables),
            rows,
            self._rounds,
            paid_rounds=min(rounds, n_rounds(self._plan)),
            lost=losses(lost),
            no_guarantee=self._no_guarantee(),
        )

    def _ended_searches(self) -> list[Note]:
        confidence = None if self._state is None else self._state.confidence
        return warnings.of_ended_searches(self._plan, self._rounds, None if confidence is None else confidence.draws)

    def _rows(self) -> int:
        """Of all sites, those that were used."""
        used = [self._part_of(site)["rows_used"] for site in self._n_samples]
        return sum(n if one is None else one for one, n in zip(used, self._n_samples.values(), strict=True))

    def _few_rows(self) -> list[Note]:
        return warnings.of_few_rows(rows, len(self._variables)) if (rows := self._rows()) else []

    def _warnings(self, told: _Told, influence: Mapping[str, Any], graph: ConsensusGraph | None) -> list[Note]:
        """What a person should know before believing these edges and their directions."""
        plan, rows, d = self._plan, list(self._n_samples.values()), len(self._variables)
        scales = () if self._state is None else self._state.scales
        found = self._ended_searches() + self._few_rows() + outliers(influence) + many_rows(self._n_samples)
        found += [note("no_guarantee", reason=reason) for reason in self._no_guarantee() if plan.privacy]
        found += [note("ejected", site=one.site, round=one.after_round) for one in self._ejected]
        gone = {one.site for one in self._ejected}
        contributed = {site for entry in self._rounds for site in entry["contributed"]} & self._n_samples.keys()
        found += [
            note("enrolment_ended", site=site, round=t)
            for site, t in self._turned_out.items()
            if site not in gone and site in contributed
        ]
        found += warnings.of_sites_not_counted(self._state)
        found += warnings.of_withheld_tables(self._state)
        found += warnings.of_too_much_noise(plan, rows, d, max(len(scales) - d, 0))
        found += data_quality(self._rounds)
        found += warnings.of_other_versions(self._site_versions)
        found += warnings.of_clipped_levels(plan, {edge["target"] for edge in told.edges})
        found += warnings.of_withheld_weights(graph)
        found += warnings.of_required_in_vain(plan, told.edges, told.curves)
        found += unused_notes(self._unused)
        state, names = self._used
        if state is None:
            return found
        found += warnings.of_empty_columns(plan, state, plan.columns(names))
        found += of_gaps(state, plan.columns(names))
        found += outlying_notes(outlying_of(state, names))
        found += warnings.of_rarely_drawn(rarely_drawn(state.confidence, plan.columns(names)))
        found += warnings.of_rare_levels(plan, names, state.units, self._rows())
        found += warnings.of_hidden_scales(plan, names, state.mean_squares)
        if state.confidence is None:
            return [*found, *warnings.of_unequal_variances(plan, names, state.residual_variance, state.units)]
        # The assumption checks have a test of the variances.
        return [*found, *warnings.of_uncounted_sites(state.confidence.uncounted)]


def _without_gaps(result: dict[str, Any]) -> dict[str, Any]:
    """The result with null for every number that is not finite; `not_known` says where, and a warning that it is so."""
    places = [path for path in not_finite(result) if not path.endswith("acyclicity")]  # of W that has diverged
    told: dict[str, Any] = {**finite(result), "not_known": places}
    if places:
        gaps = note("not_finite", places=places)
        told["warnings"], told["warning_codes"] = [*told["warnings"], gaps], [*told["warning_codes"], gaps.code]
    return told

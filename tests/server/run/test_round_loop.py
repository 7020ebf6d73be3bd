"""Algorithm 1 over an Exchange that a test writes: order, tasks, absent sites, resumption, refusals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import InterruptedRunError, RemoteProtocolError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import LocalUpdate, RoundTask, SiteState
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.rounds import refit as refit_rounds
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.algorithm.admm import AdmmState, initial_state
from fedbnsl_server.run import round_loop
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_server.sites.mailbox import Traffic, UpdateCheck
from fedbnsl_server.store import checkpoint
from fedbnsl_workbench.tables.synthetic import synthesise

SITES = ("a", "b", "c")
VARIABLES = ("u", "v", "w", "x", "y")
D = len(VARIABLES)

Answer = Callable[[str, RoundTask], LocalUpdate | None]


@dataclass
class Script:
    """An Exchange whose answers a function gives (None: the site is absent); it remembers all that it was handed."""

    answer: Answer
    events: list[tuple[str, int]] = field(default_factory=list)
    tasks: list[Mapping[str, RoundTask]] = field(default_factory=list)
    snapshots: list[Mapping[str, SiteState]] = field(default_factory=list)
    checks: list[UpdateCheck] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        self.events.append(("tasks", next(iter(tasks.values())).round))
        self.tasks.append(tasks)
        self.snapshots.append(dict(snapshots))
        self.checks.append(check)
        answers = {site: self.answer(site, task) for site, task in tasks.items()}
        updates = {site: update for site, update in answers.items() if update is not None}
        for update in updates.values():
            check(update)
        return updates


def drawn(site: str, t: int, *, density: float = 0.4) -> SparseMatrix:
    """Some weights that only this site sends, only in this round."""
    rng = np.random.default_rng([ord(site), t])
    keep = (rng.random((D, D)) < density) & ~np.eye(D, dtype=bool)
    return SparseMatrix.from_dense(np.where(keep, rng.uniform(-1.0, 1.0, (D, D)), 0.0))


def made_up(site: str, task: RoundTask) -> LocalUpdate:
    """An answer that fits the task, without any data."""
    if task.content.kind == "admm":
        return LocalUpdate(site, task.round, admm_rounds.Answer(drawn(site, task.round)))
    weights = task.content.graph
    scaled = SparseMatrix(D, weights.index, weights.value * (1.0 + ord(site) / 1000))
    return LocalUpdate(site, task.round, refit_rounds.Answer(scaled, np.full(D, float(ord(site)))))


def made_up_by(present: Mapping[int, str]) -> Answer:
    """Only the named sites (one letter each) answer in a round; all of them in other rounds."""
    return lambda site, task: made_up(site, task) if site in present.get(task.round, "abc") else None


def run(
    plan: Plan,
    script: Script,
    *,
    sites: Sequence[str] = SITES,
    state: AdmmState | None = None,
) -> tuple[list[AdmmState], list[RoundRecord]]:
    """All states after a round, and the records."""
    states: list[AdmmState] = []
    records: list[RoundRecord] = []

    def on_round(after: AdmmState, record: RoundRecord) -> None:
        script.events.append(("saved", record.round))
        states.append(after)
        records.append(record)

    end = round_loop.run(plan, VARIABLES, dict.fromkeys(sites, 100), script, on_round=on_round, state=state)
    assert not states or end is states[-1]
    return states, records


def matrix_bits(matrix: SparseMatrix | None) -> object:
    if matrix is None:
        return None
    return matrix.n_variables, matrix.index.tolist(), [float(v).hex() for v in matrix.value]


def bits(state: AdmmState) -> dict[str, object]:
    """A state as text: two states with equal bits are the same to the last bit, signed zeros included."""
    return {
        "round": state.round,
        "W": matrix_bits(state.global_weights),
        "alpha": state.acyclicity_dual.hex(),
        "h": state.acyclicity.hex(),
        "contributed": sorted(state.contributed),
        "sites": [
            (site, matrix_bits(s.local_weights), matrix_bits(s.consensus_dual)) for site, s in state.sites.items()
        ],
        "refitted": matrix_bits(state.refitted),
        "residual_variance": [float(v).hex() for v in state.residual_variance],
    }


# ---- order and tasks -----------------------------------------------------------------------------------------------


def test_a_round_is_saved_before_any_task_of_the_next_one_is_handed_out() -> None:
    script = Script(made_up)
    states, records = run(Plan(rounds=3, refit_rounds=2), script)
    assert script.events == [(what, t) for t in (1, 2, 3, 4, 5) for what in ("tasks", "saved")]
    assert [state.round for state in states] == [record.round for record in records] == [1, 2, 3, 4, 5]


def test_a_failure_to_save_ends_the_run_before_the_next_task() -> None:
    script = Script(made_up)

    def full_disk(state: AdmmState, record: RoundRecord) -> None:
        if record.round == 2:
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        round_loop.run(Plan(rounds=5), VARIABLES, dict.fromkeys(SITES, 100), script, on_round=full_disk)
    assert script.events == [("tasks", 1), ("tasks", 2)]


def test_every_site_gets_a_task_of_the_same_round_and_kind_first_admm_then_refit() -> None:
    script = Script(made_up)
    run(Plan(rounds=3, refit_rounds=2), script)
    for t, tasks in enumerate(script.tasks, start=1):
        assert sorted(tasks) == ["a", "b", "c"]
        assert {task.round for task in tasks.values()} == {t}
        assert {task.content.kind for task in tasks.values()} == {"admm" if t <= 3 else "refit"}


def test_without_refit_rounds_there_is_no_refit() -> None:
    script = Script(made_up)
    states, _ = run(Plan(rounds=2, refit_rounds=0), script)
    assert [task["a"].content.kind for task in script.tasks] == ["admm", "admm"]
    assert states[-1].refitted is None


def test_a_task_says_whether_the_site_contributed_to_the_round_before() -> None:
    present = {1: "abc", 2: "a", 3: "bc", 4: "b", 5: "ac"}
    script = Script(made_up_by(present))
    states, records = run(Plan(rounds=5, refit_rounds=1), script)
    flags = ["".join(site for site in SITES if tasks[site].contributed) for tasks in script.tasks]
    assert flags == ["", *present.values()]
    assert ["".join(sorted(state.contributed)) for state in states] == [*present.values(), "abc"]
    assert ["".join(record.contributed) for record in records] == [*present.values(), "abc"]


def test_an_admm_task_brings_the_weights_after_the_round_before_and_the_snapshot_goes_with_them() -> None:
    script = Script(made_up)
    states, _ = run(Plan(rounds=4), script)
    before = [initial_state(D, SITES), *states]
    for t, (tasks, snapshots) in enumerate(zip(script.tasks, script.snapshots, strict=True)):
        for site in SITES:
            if tasks[site].content.kind == "admm":
                assert tasks[site].content.weights == before[t].global_weights
            assert snapshots[site] == before[t].sites[site]
    assert before[0].global_weights.nnz == 0 < before[1].global_weights.nnz


def test_a_refit_task_brings_the_support_at_the_refit_threshold_and_the_second_one_the_graph_of_the_first() -> None:
    plan = Plan(
        rounds=1, refit_rounds=2, refit_threshold=0.05, acyclicity_schedule="augmented", acyclicity_penalty=1e-9
    )
    W = np.zeros((D, D))
    W[0, 1], W[1, 2], W[2, 3], W[3, 4] = 0.9, -0.2, 0.04, 0.5

    def answer(site: str, task: RoundTask) -> LocalUpdate:
        if task.content.kind == "admm":
            return LocalUpdate(site, task.round, admm_rounds.Answer(SparseMatrix.from_dense(W)))
        return LocalUpdate(site, task.round, refit_rounds.Answer(task.content.graph, np.ones(D)))

    script = Script(answer)
    run(plan, script)
    assert script.tasks[1]["a"].content.graph.index.tolist() == [0 * D + 1, 1 * D + 2, 3 * D + 4]
    assert script.tasks[2]["a"].content.graph.index.tolist() == [0 * D + 1, 3 * D + 4]


def test_a_record_counts_what_was_sent() -> None:
    script = Script(made_up_by({2: "ac"}))
    states, records = run(Plan(rounds=2, refit_rounds=1), script)
    assert records[0].entries_down == 0
    assert records[1].entries_down == states[0].global_weights.nnz > 0
    assert records[2].entries_down == script.tasks[2]["a"].content.graph.nnz
    assert dict(records[0].entries_up) == {site: drawn(site, 1).nnz for site in "abc"}
    assert dict(records[1].entries_up) == {site: drawn(site, 2).nnz for site in "ac"}
    assert [record.acyclicity for record in records] == [state.acyclicity for state in states]
    W = states[0].global_weights.to_dense()
    assert all(record.indexed_up and record.indexed_down for record in records)
    assert records[0].edges == sum(abs(W[i, j]) > 0.3 for i in range(D) for j in range(D)) > 0


def test_a_record_of_dense_messages_counts_every_entry_of_the_matrix_and_those_of_the_graph_in_a_refit() -> None:
    script = Script(made_up_by({2: "ac"}))
    _, records = run(Plan(rounds=2, refit_rounds=1, local_solver="closed-form"), script)
    assert [record.indexed_up for record in records] == [False, False, True]
    assert [record.indexed_down for record in records] == [False, False, True]
    assert [record.entries_down for record in records[:2]] == [D * D] * 2
    assert dict(records[1].entries_up) == {"a": D * D, "c": D * D}
    assert records[2].entries_down == script.tasks[2]["a"].content.graph.nnz < D * D


def test_the_order_in_which_sites_are_named_does_not_change_a_bit() -> None:
    plan = Plan(rounds=3, refit_rounds=1)
    one, _ = run(plan, Script(made_up))
    other, _ = run(plan, Script(made_up), sites=("c", "a", "b"))
    assert bits(one[-1]) == bits(other[-1])


# ---- absent sites --------------------------------------------------------------------------------------------------


def test_an_absent_site_keeps_its_weights_and_its_dual_and_the_others_advance_theirs() -> None:
    plan = Plan(rounds=4, refit_rounds=0, consensus_penalty=2.5)
    present = {1: "abc", 2: "ab", 3: "c", 4: "bc"}
    states, _ = run(plan, Script(made_up_by(present)))
    before = initial_state(D, SITES)
    for after in states:
        W = after.global_weights.to_dense()
        for site in SITES:
            old, new = before.sites[site], after.sites[site]
            if site not in present[after.round]:
                assert matrix_bits(new.local_weights) == matrix_bits(old.local_weights)
                assert matrix_bits(new.consensus_dual) == matrix_bits(old.consensus_dual)
                continue
            assert matrix_bits(new.local_weights) == matrix_bits(drawn(site, after.round))
            B, beta, beta_old = (m.to_dense() for m in (new.local_weights, new.consensus_dual, old.consensus_dual))
            for i in range(D):
                for j in range(D):
                    assert beta[i, j] == beta_old[i, j] + 2.5 * (B[i, j] - W[i, j])  # Eq. beta
        before = after


def test_an_absent_site_enters_the_global_step_as_if_it_had_sent_its_last_weights_again() -> None:
    plan = Plan(rounds=2, refit_rounds=0)
    absent, _ = run(plan, Script(made_up_by({2: "ac"})))

    def repeating(site: str, task: RoundTask) -> LocalUpdate:
        return LocalUpdate(site, task.round, admm_rounds.Answer(drawn(site, 1 if site == "b" else task.round)))

    repeated, _ = run(plan, Script(repeating))
    assert matrix_bits(absent[-1].global_weights) == matrix_bits(repeated[-1].global_weights)
    assert absent[-1].sites["b"].consensus_dual != repeated[-1].sites["b"].consensus_dual
    left_out, _ = run(plan, Script(made_up), sites=("a", "c"))
    assert absent[-1].global_weights != left_out[-1].global_weights


def test_a_refit_averages_over_the_sites_that_contributed() -> None:
    states, _ = run(Plan(rounds=1, refit_rounds=1), script := Script(made_up_by({2: "ac"})))
    sent = script.tasks[1]["a"].content.graph
    refitted = states[-1].refitted
    assert refitted is not None
    assert refitted.index.tolist() == sent.index.tolist() != []
    scale = (1 + ord("a") / 1000 + 1 + ord("c") / 1000) / 2
    np.testing.assert_allclose(refitted.value, sent.value * scale, rtol=1e-14)
    assert states[-1].residual_variance.tolist() == [(ord("a") + ord("c")) / 2] * D


# ---- resuming ------------------------------------------------------------------------------------------------------

RESUMED = [
    {"rounds": 6, "refit_rounds": 2},
    {"rounds": 6, "refit_rounds": 2, "value_type": "float32"},
    {"rounds": 6, "refit_rounds": 1, "acyclicity_schedule": "augmented", "step_size": 0.5},
    {"rounds": 4, "refit_rounds": 0, "knowledge": {"required": [["u", "v"]], "forbidden": [["w", "x"]]}},
    {"rounds": 4, "refit_rounds": 1, "local_solver": "closed-form", "knowledge": {"forbidden": [["w", "x"]]}},
]


@pytest.fixture(scope="module")
def tables() -> dict[str, Matrix]:
    federation = synthesise(D, 6, len(SITES), 60, 3, weight_variance=0.05)
    return dict(zip(SITES, federation.tables, strict=True))


def participants_from(state: AdmmState | None, plan: Plan, tables: Mapping[str, Matrix]) -> dict[str, Participant]:
    return {
        site: Participant(site, Dataset(VARIABLES, X), plan, None if state is None else state.sites[site])
        for site, X in tables.items()
    }


def of_real(participants: Mapping[str, Participant], *, lost_in: int = 0) -> Script:
    """Real participants; in round `lost_in` all of them compute their answers, then the coordinator dies."""

    def answer(site: str, task: RoundTask) -> LocalUpdate:
        update = participants[site].handle(task)
        if task.round == lost_in and site == SITES[-1]:
            raise InterruptedRunError("the coordinator died")
        return update

    return Script(answer)


@pytest.mark.parametrize("settings", RESUMED, ids=["float64", "float32", "augmented", "knowledge", "closed-form"])
@pytest.mark.parametrize("through_disk", [False, True], ids=["in memory", "from a checkpoint"])
@pytest.mark.parametrize("rebuilt", [False, True], ids=["participants go on", "participants lost their state"])
@pytest.mark.parametrize("answering", [True, False], ids=["while they answer", "between two rounds"])
@pytest.mark.long
def test_a_run_resumed_after_any_round_ends_with_the_same_bits(
    settings: dict[str, object],
    through_disk: bool,
    rebuilt: bool,
    answering: bool,
    tables: dict[str, Matrix],
    tmp_path: Path,
) -> None:
    """The coordinator dies in every round: when all sites have computed an answer, or before any has its task."""
    plan = Plan().with_settings(**settings)
    whole, _ = run(plan, of_real(participants_from(None, plan, tables)))
    assert whole[-1].global_weights.nnz > 0
    total = plan.rounds + plan.refit_rounds
    assert len(whole) == total
    for lost_in in range(1, total + 1):
        participants = participants_from(None, plan, tables)
        saved: list[AdmmState] = [initial_state(D, SITES)]

        last_saved = 0 if answering else lost_in - 1

        def save(
            state: AdmmState, record: RoundRecord, saved: list[AdmmState] = saved, last_saved: int = last_saved
        ) -> None:
            saved.append(state)
            if record.round == last_saved:
                raise InterruptedRunError("the coordinator died")

        if not answering and lost_in == 1:
            continue  # nothing has happened yet
        script = of_real(participants, lost_in=lost_in if answering else 0)
        with pytest.raises(InterruptedRunError):
            round_loop.run(plan, VARIABLES, dict.fromkeys(SITES, 100), script, on_round=save)
        state = saved[-1]
        assert state.round == lost_in - 1
        if through_disk:
            checkpoint.save(tmp_path / "state", state, plan_digest=plan.digest())
            state = checkpoint.load(tmp_path / "state", plan_digest=plan.digest())
        if rebuilt:
            participants = participants_from(state, plan, tables)
        rest, _ = run(plan, of_real(participants), state=state)
        assert [after.round for after in rest] == list(range(lost_in, total + 1))
        for resumed, uninterrupted in zip(rest, whole[lost_in - 1 :], strict=True):
            assert bits(resumed) == bits(uninterrupted), (lost_in, resumed.round)


@pytest.mark.parametrize("value_type", ["float64", "float32"])
def test_a_site_whose_answers_come_too_late_goes_on_with_the_same_bits_as_one_that_starts_from_its_snapshot(
    value_type: str, tables: dict[str, Matrix]
) -> None:
    plan = Plan(rounds=8, refit_rounds=1).with_settings(value_type=value_type)
    late = {2: "c", 3: "c", 5: "ac", 6: "b"}

    def unless_late(participants: Mapping[str, Participant]) -> Script:
        def answer(site: str, task: RoundTask) -> LocalUpdate | None:
            update = participants[site].handle(task)
            return None if site in late.get(task.round, "") else update

        return Script(answer)

    going_on, _ = run(plan, unless_late(participants_from(None, plan, tables)))
    for before, after in pairwise([initial_state(D, SITES), *going_on]):
        started_anew, _ = run(plan, unless_late(participants_from(before, plan, tables)), state=before)
        assert bits(started_anew[0]) == bits(after), after.round
    assert len({*(state.contributed for state in going_on)}) == 4


def test_a_run_that_is_complete_hands_out_nothing_more() -> None:
    plan = Plan(rounds=2, refit_rounds=1)
    states, _ = run(plan, Script(made_up))
    script = Script(made_up)
    assert (
        round_loop.run(
            plan, VARIABLES, dict.fromkeys(SITES, 100), script, on_round=lambda state, record: None, state=states[-1]
        )
        is (states[-1])
    )
    assert script.events == []


# ---- the check of an update ----------------------------------------------------------------------------------------

KNOWING = Plan().with_settings(
    rounds=1,
    refit_rounds=1,
    knowledge={"required": [["u", "v"]], "forbidden": [["v", "w"]], "tiers": [["w", "x"], ["y"]]},
)
EXCLUDED = {"forbidden": (1, 2), "against the tiers": (4, 2), "reverse of a required edge": (1, 0)}


def obedient(site: str, task: RoundTask) -> LocalUpdate:
    if task.content.kind == "refit":
        return made_up(site, task)
    return LocalUpdate(site, task.round, admm_rounds.Answer(entries((0, 1), (3, 4))))


def entries(*pairs: tuple[int, int], value: float = 0.8) -> SparseMatrix:
    index = sorted(i * D + j for i, j in pairs)
    return SparseMatrix(D, np.array(index, dtype=np.int64), np.full(len(index), value))


def checks(plan: Plan) -> list[UpdateCheck]:
    script = Script(obedient)
    run(plan, script)
    return script.checks


@pytest.mark.parametrize("pair", EXCLUDED.values(), ids=EXCLUDED.keys())
@pytest.mark.parametrize("value", [0.8, 0.0])
def test_an_update_with_an_entry_that_the_plan_excludes_is_refused(pair: tuple[int, int], value: float) -> None:
    check = checks(KNOWING)[0]
    check(LocalUpdate("b", 1, admm_rounds.Answer(entries((0, 1), (2, 4)))))
    check(LocalUpdate("b", 1, admm_rounds.Answer(SparseMatrix.zeros(D))))
    with pytest.raises(RemoteProtocolError, match="b: update 1 has entries that the plan excludes"):
        check(LocalUpdate("b", 1, admm_rounds.Answer(entries((0, 1), pair, (2, 4), value=value))))


def test_a_closed_form_may_have_every_entry_even_those_that_the_plan_excludes_from_w() -> None:
    plan = KNOWING.with_settings(local_solver="closed-form")
    script = Script(obedient)
    states, _ = run(plan, script)
    full = SparseMatrix(D, np.arange(D * D), np.ones(D * D))
    script.checks[0](LocalUpdate("b", 1, admm_rounds.Answer(full)))
    with pytest.raises(RemoteProtocolError):
        script.checks[0](LocalUpdate("b", 1, refit_rounds.Answer(full, np.ones(D))))
    with pytest.raises(RemoteProtocolError):
        script.checks[1](LocalUpdate("b", 2, refit_rounds.Answer(full, np.ones(D))))
    assert states[0].global_weights.nnz


@pytest.mark.parametrize("solver", ["pgcd", "closed-form"])
def test_an_update_with_residual_variances_is_refused_before_the_refit(solver: str) -> None:
    with pytest.raises(RemoteProtocolError):
        checks(KNOWING.with_settings(local_solver=solver))[0](
            LocalUpdate("b", 1, refit_rounds.Answer(entries((0, 1)), np.ones(D)))
        )


@pytest.mark.parametrize(
    "pairs",
    [[(0, 1)], [(0, 1), (3, 4), (2, 4)], [(0, 1), (2, 4)], []],
    ids=["an edge less", "an edge more", "another edge", "nothing"],
)
def test_a_refit_of_another_graph_is_refused(pairs: list[tuple[int, int]]) -> None:
    check = checks(KNOWING)[1]
    check(LocalUpdate("c", 2, refit_rounds.Answer(entries((0, 1), (3, 4), value=7.0), np.zeros(D))))
    with pytest.raises(RemoteProtocolError, match="c: update 2 is no refit of the graph that was sent"):
        check(LocalUpdate("c", 2, refit_rounds.Answer(entries(*pairs), np.ones(D))))


def test_a_refit_without_residual_variances_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="of the kind admm; the task is of the kind refit"):
        checks(KNOWING)[1](LocalUpdate("c", 2, admm_rounds.Answer(entries((0, 1), (3, 4)))))

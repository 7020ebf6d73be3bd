"""The mailbox on an event loop: what sites may pull and push, when a round closes, how a run ends."""

import asyncio
from collections.abc import Callable, Mapping, Set
from typing import Any, TypeVar

import numpy as np
import pytest

from fedbnsl.errors import (
    InterruptedRunError,
    MembershipLostError,
    QuorumLostError,
    RemoteProtocolError,
    StaleRoundError,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Finished, LocalUpdate, RoundTask, SiteState
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.rounds import refit as refit_rounds
from fedbnsl_server.sites import mailbox as mailbox_module
from fedbnsl_server.sites.mailbox import CompleteRounds, Mailbox, Traffic, UpdateCheck

SITES = ("a", "b", "c")
PATIENT = Plan(rounds=3)
HASTY = Plan(rounds=3, quorum=2, round_deadline_s=0.05)
SOON_S = 0.05  # nothing happened within it: a round is waiting
LONG_S = 20.0

T = TypeVar("T")
Engine = asyncio.Task[Mapping[str, LocalUpdate]]


pytestmark = pytest.mark.anyio


def joined(
    plan: Plan, notice: Callable[[str], None] = lambda text: None, *, away: Set[str] = frozenset(), **past: Any
) -> Mailbox:
    """A mailbox that all sites have joined."""
    mailbox = Mailbox(plan, asyncio.get_running_loop(), notice, is_away=lambda site: site in away, **past)
    for site in SITES:
        mailbox.take_over(site)
    return mailbox


def tasks_of(t: int) -> dict[str, RoundTask]:
    return {site: RoundTask(t, admm_rounds.Task(SparseMatrix.zeros(2)), contributed=False) for site in SITES}


def update(site: str, t: int, value: float = 0.5) -> LocalUpdate:
    return LocalUpdate(site, t, admm_rounds.Answer(SparseMatrix(2, np.array([1]), np.array([value]))))


def accept(update: LocalUpdate) -> None:
    """Nothing is wrong with it."""


async def opened(mailbox: Mailbox, t: int, check: UpdateCheck = accept) -> Engine:
    """The engine's thread in `exchange` for round t; on return the round is open."""
    engine = asyncio.create_task(asyncio.to_thread(mailbox.exchange, tasks_of(t), {}, check))
    while mailbox.round != t:
        await asyncio.sleep(0)
    return engine


async def stopped(mailbox: Mailbox, engine: Engine) -> None:
    mailbox.stop()
    with pytest.raises(InterruptedRunError):
        await engine


async def waits(engine: asyncio.Task[T]) -> bool:
    _, pending = await asyncio.wait({engine}, timeout=SOON_S)
    return bool(pending)


async def closed(engine: Engine) -> str:
    """The sites whose updates a closed round has, as one word."""
    updates = await asyncio.wait_for(engine, LONG_S)
    assert all(site == update.site for site, update in updates.items())
    return "".join(sorted(updates))


# ---- pulling -------------------------------------------------------------------------------------------------------


async def test_a_pull_waits_its_time_and_then_brings_nothing() -> None:
    mailbox = joined(PATIENT)
    loop = asyncio.get_running_loop()
    asked = loop.time()
    assert await mailbox.pull("a", 0, 0.1) is None
    assert loop.time() - asked > 0.09


async def test_a_pull_that_waits_gets_the_task_when_the_round_opens() -> None:
    mailbox = joined(PATIENT)
    pulls = {site: asyncio.create_task(mailbox.pull(site, 0, LONG_S)) for site in SITES}
    assert await waits(pulls["a"])
    engine = await opened(mailbox, 1)
    for site, pull in pulls.items():
        task = await pull
        assert isinstance(task, RoundTask)
        assert task.round == 1
        mailbox.push(update(site, 1))
    assert await closed(engine) == "abc"


async def test_each_site_gets_its_own_task_and_the_same_one_again_if_it_asks_again() -> None:
    mailbox = joined(PATIENT)
    tasks = tasks_of(1)
    engine = asyncio.create_task(asyncio.to_thread(mailbox.exchange, tasks, {}, accept))
    for site in SITES:
        for _ in range(3):
            assert await mailbox.pull(site, 0, LONG_S) is tasks[site]
        mailbox.push(update(site, 1))
    assert await closed(engine) == "abc"


async def test_a_site_that_lost_the_reply_to_its_push_can_still_pull_the_task_of_the_open_round() -> None:
    mailbox = joined(PATIENT)
    engine = await opened(mailbox, 1)
    mailbox.push(update("a", 1))
    assert isinstance(await mailbox.pull("a", 0, LONG_S), RoundTask)
    await stopped(mailbox, engine)


async def test_a_site_that_has_answered_the_open_round_waits_for_the_next() -> None:
    mailbox = joined(PATIENT)
    engine = await opened(mailbox, 1)
    mailbox.push(update("a", 1))
    pull = asyncio.create_task(mailbox.pull("a", 1, LONG_S))
    assert await waits(pull)
    for site in ("b", "c"):
        mailbox.push(update(site, 1))
    await closed(engine)
    assert await waits(pull)
    engine = await opened(mailbox, 2)
    task = await pull
    assert isinstance(task, RoundTask)
    assert task.round == 2
    await stopped(mailbox, engine)


@pytest.mark.parametrize("last_round", [3, 7], ids=["the open round", "a later one"])
async def test_whoever_answered_a_coordinator_that_did_not_live_to_count_it_gets_the_task_again(
    last_round: int,
) -> None:
    mailbox = joined(PATIENT)
    pull = asyncio.create_task(mailbox.pull("a", last_round, LONG_S))
    assert await waits(pull), "no round is open"
    engine = await opened(mailbox, 3)
    task = await pull
    assert isinstance(task, RoundTask)
    assert task.round == 3
    mailbox.push(update("a", 3))
    assert await mailbox.pull("a", last_round, SOON_S) is None, "now its answer counts"
    await stopped(mailbox, engine)


async def test_a_mailbox_that_goes_on_knows_its_round_and_snapshots_before_a_round_is_open() -> None:
    fresh = joined(PATIENT)
    assert (fresh.round, fresh.complete_rounds) == (0, 0)
    kept = {site: SiteState(SparseMatrix.zeros(2), SparseMatrix.zeros(2)) for site in SITES}
    sent = Traffic()
    sent.up["a"][4] = 77
    mailbox = Mailbox(PATIENT, asyncio.get_running_loop(), past=CompleteRounds(4, kept), traffic=sent)
    assert (mailbox.round, mailbox.complete_rounds) == (4, 4)
    assert mailbox.snapshots["b"] is kept["b"]
    assert mailbox.traffic.up["a"][4] == 77
    mailbox.take_over("a")
    with pytest.raises(StaleRoundError, match="update for round 5 arrived in round 4; pull the current task"):
        mailbox.push(update("a", 5))
    assert await mailbox.pull("a", 4, SOON_S) is None
    engine = await opened(mailbox, 5)
    assert (mailbox.round, mailbox.complete_rounds) == (5, 4)
    await stopped(mailbox, engine)


@pytest.mark.parametrize("last_round", range(1, 8))
async def test_a_site_whose_past_is_not_that_of_a_run_that_goes_on_joins_again_first(last_round: int) -> None:
    """The run goes on after round 4; in round 3 its coordinator handed c nothing, and b and a answered throughout."""
    sent = Traffic()
    for site, present in (("a", range(1, 5)), ("b", range(1, 5)), ("c", (1, 2, 4))):
        for t in present:
            sent.down[site][t] = 10
    # b had the task of round 2 from a coordinator that was killed, and answered it to the next one.
    del sent.down["b"][2]
    past = CompleteRounds(4, answered={"a": 4, "b": 2, "c": 4})
    mailbox = Mailbox(PATIENT, asyncio.get_running_loop(), past=past, traffic=sent)
    engine = await opened(mailbox, 5)
    for site in SITES:
        known = last_round <= 5 and (site, last_round) != ("c", 3)
        if known:
            assert await mailbox.pull(site, last_round, SOON_S) == tasks_of(5)[site]
            continue
        refusal = (
            f"site '{site}' has seen a round {last_round} that this run does not have: it has not joined this run$"
        )
        with pytest.raises(MembershipLostError, match=refusal):
            await mailbox.pull(site, last_round, SOON_S)
        with pytest.raises(MembershipLostError, match=refusal):
            mailbox.push(update(site, last_round))
        assert site not in mailbox.answered
        mailbox.take_over(site)
        assert await mailbox.pull(site, 4, SOON_S) == tasks_of(5)[site]
    for site in SITES:  # from here on it is the run's own past
        mailbox.push(update(site, 5))
    assert await closed(engine) == "abc"
    engine = await opened(mailbox, 6)
    assert await mailbox.pull("c", 5, SOON_S) == tasks_of(6)["c"]
    await stopped(mailbox, engine)


async def test_pulls_that_wait_are_let_go_without_an_answer_when_the_coordinator_goes_down() -> None:
    mailbox = joined(PATIENT)
    pulls = [asyncio.create_task(mailbox.pull(site, 0, LONG_S)) for site in SITES]
    assert await waits(pulls[0])
    mailbox.dismiss()
    assert await asyncio.wait_for(asyncio.gather(*pulls), LONG_S / 2) == [None, None, None]


async def test_a_closed_round_is_not_handed_out() -> None:
    mailbox = joined(HASTY)
    engine = await opened(mailbox, 1)
    mailbox.push(update("a", 1))
    mailbox.push(update("b", 1))
    assert await closed(engine) == "ab"
    assert await mailbox.pull("c", 0, SOON_S) is None


async def test_the_snapshots_of_the_open_round_are_there_for_a_site_that_lost_its_state() -> None:
    mailbox = joined(PATIENT)
    assert mailbox.snapshots == {}
    kept = {site: SiteState(SparseMatrix.zeros(2), SparseMatrix.zeros(2)) for site in SITES}
    engine = asyncio.create_task(asyncio.to_thread(mailbox.exchange, tasks_of(1), kept, accept))
    await mailbox.pull("a", 0, LONG_S)
    assert mailbox.snapshots["b"] is kept["b"]
    await stopped(mailbox, engine)


# ---- pushing -------------------------------------------------------------------------------------------------------


async def test_a_repeated_push_is_a_success_while_the_round_is_open_after_it_closed_and_in_the_next_round() -> None:
    mailbox = joined(PATIENT)
    engine = await opened(mailbox, 1)
    assert mailbox.push(update("a", 1)) is False
    assert mailbox.push(update("a", 1)) is True
    assert mailbox.answered == {"a"}
    assert mailbox.push(update("b", 1)) is False
    assert mailbox.push(update("c", 1)) is False
    assert await closed(engine) == "abc"
    assert mailbox.push(update("a", 1)) is True
    engine = await opened(mailbox, 2)
    assert mailbox.answered == frozenset()
    assert mailbox.push(update("a", 1)) is True
    assert mailbox.answered == frozenset(), "the repeat belongs to the round before"
    for site in SITES:
        assert mailbox.push(update(site, 2, 0.25)) is False
    assert await closed(engine) == "abc"


@pytest.mark.parametrize(
    "other",
    [update("a", 1, 0.25), update("a", 1, -0.5), LocalUpdate("a", 1, admm_rounds.Answer(SparseMatrix.zeros(2)))],
)
async def test_a_second_different_update_of_a_round_is_refused_whenever_it_comes(other: LocalUpdate) -> None:
    mailbox = joined(PATIENT)
    engine = await opened(mailbox, 1)
    for site in SITES:
        mailbox.push(update(site, 1))
        with pytest.raises(RemoteProtocolError, match="a second, different update of 'a' for round 1"):
            mailbox.push(other)
    updates = await engine
    assert updates["a"] == update("a", 1), "the first one counts"
    with pytest.raises(RemoteProtocolError, match="a second, different update"):
        mailbox.push(other)


async def test_an_update_that_differs_only_in_its_residual_variances_is_another_one() -> None:
    mailbox = joined(PATIENT)
    engine = await opened(mailbox, 1)
    weights = SparseMatrix.zeros(2)
    mailbox.push(LocalUpdate("a", 1, refit_rounds.Answer(weights, np.array([1.0, 2.0]))))
    assert mailbox.push(LocalUpdate("a", 1, refit_rounds.Answer(weights, np.array([1.0, 2.0])))) is True
    with pytest.raises(RemoteProtocolError, match="different"):
        mailbox.push(LocalUpdate("a", 1, refit_rounds.Answer(weights, np.array([1.0, 2.5]))))
    await stopped(mailbox, engine)


async def test_an_update_for_another_round_than_the_open_one_is_refused_and_told_the_present_round() -> None:
    mailbox = joined(HASTY)
    with pytest.raises(StaleRoundError, match="update for round 1 arrived in round 0; pull the current task"):
        mailbox.push(update("a", 1))
    engine = await opened(mailbox, 1)
    with pytest.raises(StaleRoundError, match="update for round 2 arrived in round 1"):
        mailbox.push(update("a", 2))
    mailbox.push(update("a", 1))
    mailbox.push(update("b", 1))
    assert await closed(engine) == "ab"
    with pytest.raises(StaleRoundError, match="update for round 1 arrived after that round had closed"):
        mailbox.push(update("c", 1))
    engine = await opened(mailbox, 2)
    with pytest.raises(StaleRoundError, match="update for round 1 arrived in round 2"):
        mailbox.push(update("c", 1))
    mailbox.push(update("b", 2))
    mailbox.push(update("c", 2))
    assert await closed(engine) == "bc", "the late site takes part again"


async def test_an_update_of_a_site_without_a_task_is_refused() -> None:
    mailbox = joined(PATIENT)
    engine = await opened(mailbox, 1)
    with pytest.raises(RemoteProtocolError, match="site 'z' has no task"):
        mailbox.push(update("z", 1))
    assert mailbox.answered == frozenset()
    await stopped(mailbox, engine)


async def test_an_update_that_does_not_fit_its_task_is_not_taken_in_and_the_site_may_send_a_better_one() -> None:
    def check(update: LocalUpdate) -> None:
        if update.content.weights.value[0] > 1:
            raise RemoteProtocolError("too large")

    mailbox = joined(PATIENT)
    engine = await opened(mailbox, 1, check)
    with pytest.raises(RemoteProtocolError, match="too large"):
        mailbox.push(update("a", 1, 7.0))
    assert mailbox.answered == frozenset()
    for site in SITES:
        assert mailbox.push(update(site, 1, 0.75)) is False
    assert (await engine)["a"].content.weights.value.tolist() == [0.75]


# ---- when a round closes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "leaves"),
    [
        pytest.param({"round_deadline_s": SOON_S / 10}, "", id="without a quorum"),
        pytest.param({"quorum": 2}, "", id="with a quorum, until the deadline"),
        pytest.param({"quorum": 1}, "a", id="also if one that has answered leaves"),
    ],
)
async def test_a_round_waits_for_every_site_that_still_works(settings: dict[str, Any], leaves: str) -> None:
    mailbox = joined(PATIENT.with_settings(**settings))
    engine = await opened(mailbox, 1)
    mailbox.push(update("a", 1))
    if leaves:
        mailbox.leave(leaves)
    mailbox.push(update("b", 1))
    assert await waits(engine)
    mailbox.push(update("c", 1))
    assert await closed(engine) == "abc"


async def test_at_its_deadline_a_round_closes_with_a_quorum() -> None:
    mailbox = joined(HASTY)
    engine = await opened(mailbox, 1)
    mailbox.push(update("c", 1))
    mailbox.push(update("a", 1))
    assert await closed(engine) == "ac"


async def test_a_site_that_is_silent_beyond_its_grace_is_named_while_the_round_waits_for_it() -> None:
    notices: list[str] = []

    mailbox = joined(PATIENT.with_settings(quorum=2, site_grace_s=SOON_S), notices.append)
    engine = await opened(mailbox, 1)
    mailbox.push(update("a", 1))
    mailbox.push(update("c", 1))
    while not notices:
        await asyncio.sleep(0.01)
    assert await waits(engine), "there is a quorum, but the round's deadline is far"
    mailbox.push(update("b", 1))
    assert await closed(engine) == "abc"
    assert notices == ["round 1 waits for b"]


async def test_below_the_quorum_a_round_waits_beyond_its_deadline_and_then_for_no_more_than_the_quorum() -> None:
    notices: list[str] = []

    mailbox = joined(HASTY, notices.append)
    engine = await opened(mailbox, 1)
    mailbox.push(update("c", 1))
    while not notices:
        await asyncio.sleep(0.01)
    assert await waits(engine)
    mailbox.push(update("a", 1))
    assert await closed(engine) == "ac"
    assert notices == ["round 1 waits for a, b"]


async def test_below_the_quorum_at_the_run_deadline_the_run_ends_and_names_who_is_missing() -> None:
    mailbox = joined(HASTY.with_settings(run_deadline_s=0.5))
    engine = await opened(mailbox, 1)
    for site in SITES:
        mailbox.push(update(site, 1))
    assert await closed(engine) == "abc"
    engine = await opened(mailbox, 2)
    mailbox.push(update("b", 2))
    with pytest.raises(QuorumLostError) as caught:
        await closed(engine)
    assert str(caught.value) == (
        "round 2: 1 of the needed 2 sites answered within run_deadline_s = 0.5 s; missing: a, c"
    )
    with pytest.raises(StaleRoundError):
        mailbox.push(update("a", 2))


async def test_the_run_deadline_ends_a_round_whose_own_deadline_is_later() -> None:
    mailbox = joined(PATIENT.with_settings(quorum=2, run_deadline_s=0.1))
    engine = await opened(mailbox, 1)
    mailbox.push(update("a", 1))
    with pytest.raises(QuorumLostError, match="missing: b, c"):
        await closed(engine)


# ---- sites that leave ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before the others answer", "after the others answered", "before the round"])
async def test_nobody_waits_for_a_site_that_left(when: str) -> None:
    mailbox = joined(PATIENT.with_settings(quorum=2))
    if when == "before the round":
        mailbox.leave("b")
    engine = await opened(mailbox, 1)
    if when == "before the others answer":
        mailbox.leave("b")
    mailbox.push(update("a", 1))
    assert await waits(engine)
    mailbox.push(update("c", 1))
    if when == "after the others answered":
        assert await waits(engine)
        mailbox.leave("b")
    assert await closed(engine) == "ac"
    assert mailbox.left == {"b"}


async def test_with_a_quorum_nobody_waits_for_a_site_that_is_away_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mailbox_module, "_LOOK_S", 0.01)
    away, said = set[str](), list[str]()

    mailbox = joined(PATIENT.with_settings(quorum=2), said.append, away=away)
    engine = await opened(mailbox, 1)
    for site in ("a", "b"):
        mailbox.push(update(site, 1))
    assert await waits(engine), "the round's deadline is far"
    away.add("c")
    assert await closed(engine) == "ab"
    engine = await opened(mailbox, 2)
    for site in ("a", "b"):
        mailbox.push(update(site, 2))
    assert await closed(engine) == "ab"
    engine = await opened(mailbox, 3)
    away.clear()
    mailbox.welcome("c")
    for site in ("a", "b"):
        mailbox.push(update(site, 3))
    assert await waits(engine), "it is back, and counted on"
    mailbox.push(update("c", 3))
    assert await closed(engine) == "abc"
    assert said == ["c is away: it has not been heard of for 35 s", "c is back"]


async def test_below_the_quorum_a_round_waits_for_sites_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox_module, "_LOOK_S", 0.01)

    mailbox = joined(PATIENT.with_settings(quorum=2), away={"b", "c"})
    engine = await opened(mailbox, 1)
    mailbox.push(update("a", 1))
    assert await waits(engine)
    mailbox.welcome("b")
    mailbox.push(update("b", 1))
    assert await closed(engine) == "ab"


async def test_sites_that_left_still_count_towards_the_quorum_that_is_needed() -> None:
    mailbox = joined(PATIENT.with_settings(quorum=2))
    engine = await opened(mailbox, 1)
    mailbox.leave("b")
    mailbox.leave("c")
    mailbox.push(update("a", 1))
    assert await waits(engine)
    mailbox.welcome("c")
    mailbox.push(update("c", 1))
    assert await closed(engine) == "ac"


async def test_a_site_that_comes_back_in_the_open_round_is_waited_for_again() -> None:
    mailbox = joined(PATIENT.with_settings(quorum=2))
    engine = await opened(mailbox, 1)
    mailbox.leave("b")
    mailbox.welcome("b")
    assert mailbox.left == frozenset()
    mailbox.push(update("a", 1))
    mailbox.push(update("c", 1))
    assert await waits(engine)
    mailbox.push(update("b", 1))
    assert await closed(engine) == "abc"


async def test_a_site_that_comes_back_after_it_answered_is_not_waited_for_twice() -> None:
    mailbox = joined(PATIENT)
    engine = await opened(mailbox, 1)
    mailbox.push(update("b", 1))
    mailbox.welcome("b")
    mailbox.push(update("a", 1))
    mailbox.push(update("c", 1))
    assert await closed(engine) == "abc"


async def test_a_round_that_has_lost_its_quorum_says_whom_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox_module, "_LOOK_S", 0.01)
    away = set[str]()

    mailbox = joined(PATIENT.with_settings(quorum=2), away=away)
    assert mailbox.lacking == ""
    engine = await opened(mailbox, 1)
    mailbox.push(update("a", 1))
    assert mailbox.lacking == "", "b and c may still answer"
    mailbox.leave("b")
    assert mailbox.lacking == "", "a and c are two"
    away.add("c")
    while not mailbox.lacking:
        await asyncio.sleep(0.01)
    assert mailbox.lacking == "waiting for b, c (quorum 2 of 3)"
    away.clear()
    mailbox.welcome("c")
    assert mailbox.lacking == ""
    mailbox.push(update("c", 1))
    assert await closed(engine) == "ac"
    assert mailbox.lacking == ""


# ---- the end -------------------------------------------------------------------------------------------------------


async def test_stop_ends_the_present_exchange_and_every_later_one() -> None:
    mailbox = joined(PATIENT)
    engine = await opened(mailbox, 1)
    mailbox.push(update("a", 1))
    mailbox.stop()
    with pytest.raises(InterruptedRunError, match="stopped in round 1"):
        await closed(engine)
    engine = await opened(mailbox, 2)
    with pytest.raises(InterruptedRunError, match="stopped in round 2"):
        await closed(engine)


async def test_stop_ends_a_round_that_waits_for_its_quorum_beyond_the_deadline() -> None:
    notices: list[str] = []

    mailbox = joined(HASTY, notices.append)
    engine = await opened(mailbox, 1)
    while not notices:
        await asyncio.sleep(0.01)
    mailbox.stop()
    with pytest.raises(InterruptedRunError):
        await closed(engine)


async def test_the_end_reaches_sites_that_wait_and_sites_that_ask_later() -> None:
    mailbox = joined(PATIENT)
    end = Finished(SparseMatrix.zeros(2))
    pull = asyncio.create_task(mailbox.pull("a", 3, LONG_S))
    assert await waits(pull)
    finishing = asyncio.create_task(mailbox.finish(end, set(SITES), LONG_S))
    assert await pull is end
    assert await mailbox.pull("b", 0, LONG_S) is end
    assert await mailbox.pull("c", 99, LONG_S) is end
    mailbox.told("a")
    mailbox.told("b")
    assert await waits(finishing), "one site has not been sent all of it"
    mailbox.told("c")
    await asyncio.wait_for(finishing, LONG_S)
    assert await mailbox.pull("b", 0, LONG_S) is end, "as often as it asks"


async def test_the_end_waits_neither_for_sites_that_left_nor_longer_than_its_grace() -> None:
    mailbox = joined(PATIENT)
    mailbox.leave("b")
    finishing = asyncio.create_task(mailbox.finish(Finished(None, "lost"), set(SITES), LONG_S))
    for site in ("a", "c"):
        await mailbox.pull(site, 0, LONG_S)
        mailbox.told(site)
    await asyncio.wait_for(finishing, LONG_S / 2)
    await asyncio.wait_for(mailbox.finish(Finished(None, "lost"), {"a", "d"}, SOON_S), LONG_S / 2)


async def test_the_end_waits_no_longer_for_a_site_that_leaves_instead_of_hearing_it() -> None:
    mailbox = joined(PATIENT)
    finishing = asyncio.create_task(mailbox.finish(Finished(None, "lost"), {"a", "b"}, LONG_S))
    assert await waits(finishing)
    mailbox.leave("a")
    assert await waits(finishing), "b has not heard it"
    mailbox.leave("b")
    await asyncio.wait_for(finishing, LONG_S / 2)


async def test_the_end_comes_before_the_task_of_an_open_round() -> None:
    mailbox = joined(PATIENT)
    engine = await opened(mailbox, 1)
    mailbox.stop()
    with pytest.raises(InterruptedRunError):
        await closed(engine)
    await mailbox.finish(end := Finished(None, "the coordinator was interrupted"), set(), 0.0)
    assert await mailbox.pull("a", 0, LONG_S) is end


async def test_after_a_restart_a_site_has_answered_what_it_answered_before() -> None:
    mailbox = joined(Plan(), past=CompleteRounds(4, answered={"a": 4, "b": 2}))
    engine = await opened(mailbox, 5)
    mailbox.push(update("b", 5))
    assert [mailbox.last_answered(site) for site in SITES] == [4, 5, 0]
    await stopped(mailbox, engine)

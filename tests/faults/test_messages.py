"""Messages that are too large, mutated or plain garbage: refused with a reason, and the run goes on."""

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults import invariants, wire_doors
from faults.killable import Command, stop
from faults.scene import COORDINATOR, VARIABLES, Scene, guarded_plan
from faults.wire_doors import DOORS
from fedbnsl.errors import ProtocolError, SchemaMismatchError
from fedbnsl.protocol import codec
from fedbnsl.protocol.channel import CALLS_AT_ONCE
from fedbnsl.protocol.messages import Content, Covariances, JoinRequest, RoundTask
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import completion as completion_rounds
from fedbnsl.rounds import counts as counts_rounds
from fedbnsl.rounds import hinges as hinges_rounds
from fedbnsl.rounds import moments as moments_rounds
from fedbnsl.rounds import regressions as regressions_rounds
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl_client.session import Session

EXAMPLES = 500  # a door
FUZZ_RUNS, FUZZ_S = 20_000, 30
LIVE_CALLS = 3_000
GROWTH_BYTES = 64 * 2**20
SENT = "fedbnsl_client.session.Session.push"
CALLS = {
    "Join": federation.JoinRequest,
    "PullTask": federation.PullRequest,
    "PushUpdate": federation.Update,
    "Leave": federation.LeaveRequest,
    "Status": federation.StatusRequest,
}
# The servicer's table, success, and what the client itself says of a long poll that it did not wait for.
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A message with a few bytes changed, taken out, put in, repeated, or cut off."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0 if at < len(changed):
                changed[at] = rng.randrange(256)
            case 1:
                changed[at:at] = rng.randbytes(rng.randint(1, 8))
            case 2:
                del changed[at : at + rng.randint(1, 8)]
            case 3:
                changed[at:at] = changed[at : at + rng.randint(1, 32)]
            case 4:
                del changed[at:]
    return bytes(changed)


# ---- the decoders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOORS)
def test_an_unchanged_message_gets_in(name: str) -> None:
    assert wire_doors.enter(name, DOORS[name].example.SerializeToString())


@pytest.mark.parametrize("name", DOORS)
def test_whatever_becomes_of_a_message_it_is_refused_or_valid(name: str) -> None:
    got_in: Counter[bool] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(st.randoms(use_true_random=False))
    def try_one(rng: random.Random) -> None:
        got_in[wire_doors.enter(name, mutated(DOORS[name].example.SerializeToString(), rng))] += 1

    try_one()
    assert got_in[False], "some of it was refused"
    assert sum(got_in.values()) >= EXAMPLES


@settings(max_examples=2 * EXAMPLES, deadline=None, database=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_valid(data: bytes) -> None:
    wire_doors.knock(data)


@pytest.mark.parametrize(
    "content",
    [
        completion_rounds.Task(None),
        completion_rounds.Task(Covariances(np.eye(wire_doors.D), np.zeros(wire_doors.D))),
        counts_rounds.Task.of(((0,), (1, 2, 3))),
        hinges_rounds.Task(np.array([1, 3])),
        moments_rounds.Task(SparseMatrix.zeros(wire_doors.D)),
        regressions_rounds.Task((regressions_rounds.Family((0,), (1, 2)),), np.zeros(2)),
    ],
    ids=lambda content: content.kind,
)
def test_tasks_of_other_kinds_come_in_at_the_same_door(content: Content) -> None:
    task = codec.encode_task(RoundTask(1, content, contributed=True), value_type="float64")
    assert wire_doors.enter("task", task.SerializeToString())


@pytest.mark.skipif(find_spec("atheris") is None, reason="needs atheris, which has no wheel for this system")
def test_a_fuzzer_that_sees_the_code_finds_no_way_in(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, door in enumerate(DOORS.values()):
        (corpus / f"{number}").write_bytes(bytes([number]) + door.example.SerializeToString())
    script = Path(__file__).with_name("fuzz_codec.py")
    options = [f"-runs={FUZZ_RUNS}", f"-max_total_time={FUZZ_S}", "-seed=1", "-rss_limit_mb=1024", "-timeout=5"]
    done = subprocess.run(
        [sys.executable, str(script), str(corpus), *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(script.parents[1])},
        capture_output=True,
        text=True,
        timeout=FUZZ_S + 60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (runs,) = re.findall(r"Done (\d+) (?:runs )?in", done.stderr + done.stdout)
    assert int(runs) >= FUZZ_RUNS / 4, "the machine is slow, but not that slow"


# ---- a live coordinator ---------------------------------------------------------------------------------------------


def resident_bytes(command: Command) -> int:
    (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{command.pid}/status").read_text())
    return int(kib) * 1024


def test_garbage_to_every_call_is_answered_by_the_table_and_the_run_goes_on(tmp_path: Path) -> None:
    plan = guarded_plan(n_participants=3, quorum=2, round_deadline_s=1.0, site_grace_s=0.5)
    rng = random.Random(5)
    with Scene(tmp_path, plan) as scene:
        coordinator = scene.open()
        scene.start("south")
        north = scene.start("north", stop(SENT, "before", 1))
        with ExitStack() as opened:
            own = [("grpc.use_local_subchannel_pool", 1)]  # a connection each, for a connection has few calls at once
            channels = [opened.enter_context(grpc.insecure_channel(scene.proxy.address, own)) for _ in range(25)]
            stubs = [{name: raw.unary_unary(f"/fedbnsl.wire.Federation/{name}") for name in CALLS} for raw in channels]
            calls = stubs[0]
            join = codec.encode_join(JoinRequest("rogue", VARIABLES, 120))
            run = federation.JoinReply.FromString(calls["Join"](join.SerializeToString(), timeout=5)).run
            north.wait_until_stopped(20)
            tag = run & 0xFFFF_FFFF
            update = federation.Update(run=tag, site="rogue", round=1)
            update.admm.n_variables = 4
            update.admm.index_gap.extend([1, 3])
            update.admm.value.extend([0.5, -0.5])
            valid = {
                "Join": join,
                "PullTask": federation.PullRequest(run=tag, site="rogue"),
                "PushUpdate": update,
                "Leave": federation.LeaveRequest(run=tag, site="rogue"),
                "Status": federation.StatusRequest(),
            }
            before, answers = resident_bytes(coordinator), Counter[tuple[str, grpc.StatusCode]]()
            waiting: list[tuple[str, grpc.Future]] = []
            for number in range(LIVE_CALLS):
                name = rng.choice(list(CALLS))
                data = (
                    rng.randbytes(rng.randrange(200))
                    if number % 4 == 0
                    else mutated(valid[name].SerializeToString(), rng)
                )
                waiting.append((name, stubs[number % len(stubs)][name].future(data, timeout=1.0)))
                if len(waiting) == CALLS_AT_ONCE * len(stubs) or number == LIVE_CALLS - 1:
                    for called, future in waiting:
                        code, details = future.code(), future.details() or ""
                        answers[called, code] += 1
                        assert code in ANSWERS, (called, code, details)
                        assert "Error" not in details, (called, code, details)
                        assert "Traceback" not in details, (called, code, details)
                    waiting.clear()
            assert sum(answers.values()) == LIVE_CALLS
            assert {name for name, code in answers if code is grpc.StatusCode.INVALID_ARGUMENT} == set(CALLS)
            assert resident_bytes(coordinator) - before < GROWTH_BYTES
            calls["Status"](b"", timeout=5)
        north.signal(signal.SIGCONT)
        assert scene.last() == {COORDINATOR: [0], "north": [0], "south": [0]}, scene.said
        assert "unexpected" not in coordinator.said
        invariants.budgets_held(scene)


def test_a_message_above_what_the_plan_can_mean_is_refused_with_size_and_cap_and_one_below_is_read(
    tmp_path: Path,
) -> None:
    plan = guarded_plan(variables=VARIABLES)
    cap = codec.largest_call_bytes(VARIABLES)
    with Scene(tmp_path, plan) as scene:
        coordinator = scene.open()

        def application(n_bytes: int) -> JoinRequest:
            names = [f"{number:06}".ljust(497, "x") for number in range(n_bytes // 500)]
            request = JoinRequest("giant", tuple(names), 120)
            missing = n_bytes - codec.encode_join(request).ByteSize()
            return JoinRequest("giant", (*names, "y" * (missing - (3 if missing > 130 else 2))), 120)

        below, above = application(cap), application(cap + 1)
        assert [codec.encode_join(request).ByteSize() for request in (below, above)] == [cap, cap + 1]
        session = Session(scene.proxy.address, patience_s=5.0, notice=lambda text: None)
        try:
            with pytest.raises(ProtocolError, match=rf"Received message larger than max \({cap + 1} vs. {cap}\)"):
                session.join(above)
            with pytest.raises(SchemaMismatchError, match="the site's variables are not those of the run"):
                session.join(below)
        finally:
            session.close()
        for site in scene.sites:
            scene.start(site)
        assert scene.last() == {COORDINATOR: [0], "north": [0], "south": [0]}, scene.said
        assert "giant" not in coordinator.said
        invariants.what_was_used_is_what_was_paid_for(scene)

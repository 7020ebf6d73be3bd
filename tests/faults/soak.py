"""A long soak of a coordinator in malformed calls, while its sites go on with their run. Not a part of the tests:

    PYTHONPATH=tests .venv/bin/python -m faults.soak [CALLS] [MINUTES]

Prints how the calls were answered, and the coordinator's memory at ten moments. The defaults are 1,000,000 calls and at
most 20 minutes. Everything stays on loopback.
"""

import multiprocessing
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from contextlib import ExitStack
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import grpc

from faults.scene import VARIABLES, Scene, public_plan
from faults.test_messages import CALLS, mutated, resident_bytes
from fedbnsl.protocol import codec
from fedbnsl.protocol.channel import CALLS_AT_ONCE
from fedbnsl.protocol.messages import JoinRequest
from fedbnsl.wire import federation_pb2 as federation

ATTACKERS = 2  # processes
CONNECTIONS = 12  # of each
READINGS = 10


def flood(address: str, run: int, n_calls: int, until: float, seed: int, counts: "Queue[Any]") -> None:
    """Make so many malformed calls, and send on how many were answered how."""
    rng = random.Random(seed)
    update = federation.Update(run=run & 0xFFFF_FFFF, site="rogue", round=1)
    update.admm.n_variables = len(VARIABLES)
    update.admm.index_gap.extend([1, 3])
    update.admm.value.extend([0.5, -0.5])
    valid = {
        "Join": codec.encode_join(JoinRequest("rogue", VARIABLES, 120)),
        "PullTask": federation.PullRequest(run=run & 0xFFFF_FFFF, site="rogue"),
        "PushUpdate": update,
        "Leave": federation.LeaveRequest(run=run & 0xFFFF_FFFF, site="rogue"),
        "Status": federation.StatusRequest(),
    }
    bodies = {name: message.SerializeToString() for name, message in valid.items()}
    answers: Counter[str] = Counter()
    with ExitStack() as opened:
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [opened.enter_context(grpc.insecure_channel(address, own)) for _ in range(CONNECTIONS)]
        stubs = [{name: raw.unary_unary(f"/fedbnsl.wire.Federation/{name}") for name in CALLS} for raw in channels]
        waiting: deque[grpc.Future] = deque()
        for number in range(n_calls):
            if time.monotonic() > until:
                break
            name = rng.choice(list(CALLS))
            data = rng.randbytes(rng.randrange(200)) if number % 4 == 0 else mutated(bodies[name], rng)
            call: Any = stubs[number % CONNECTIONS][name]
            waiting.append(call.future(data, timeout=0.3))
            if len(waiting) >= CALLS_AT_ONCE * CONNECTIONS:
                answers[waiting.popleft().code().name] += 1
            if number % 1000 == 999:
                counts.put(dict(answers))
                answers.clear()
        answers.update(future.code().name for future in waiting)
    counts.put(dict(answers))
    counts.put(None)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(n_calls: int, minutes: float) -> int:
    """Soak; 0 if the coordinator is still there and ends in an orderly way."""
    plan = public_plan(
        n_participants=3, quorum=2, rounds=100_000, round_deadline_s=0.5, site_grace_s=0.2, variables=VARIABLES
    )
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch, Scene(Path(scratch), plan) as scene:
        coordinator = scene.open()
        for site in scene.sites:
            scene.start(site)
        with grpc.insecure_channel(scene.addresses[-1]) as raw:
            join = codec.encode_join(JoinRequest("rogue", VARIABLES, 120)).SerializeToString()
            call: Any = raw.unary_unary("/fedbnsl.wire.Federation/Join")
            run = federation.JoinReply.FromString(call(join, timeout=10)).run
        counts: Queue[Any] = context.Queue()
        share, until = n_calls // ATTACKERS, time.monotonic() + 60 * minutes
        attackers = [
            context.Process(target=flood, args=(scene.addresses[-1], run, share, until, seed, counts))
            for seed in range(ATTACKERS)
        ]
        for attacker in attackers:
            attacker.start()
        answers: Counter[str] = Counter()

        def say_memory() -> None:
            seconds, memory = time.monotonic() - began, resident_bytes(coordinator) / 2**20
            say(f"{answers.total():>9,} calls after {seconds:5.0f} s: {memory:.0f} MiB")

        ended, shown = 0, 0
        while ended < ATTACKERS:
            counted = counts.get(timeout=60)
            ended += counted is None
            answers.update(counted or {})
            while shown < READINGS and answers.total() >= shown * n_calls / READINGS:
                shown += 1
                assert coordinator.returncode is None, coordinator.said
                say_memory()
        for attacker in attackers:
            attacker.join()
        say_memory()
        rounds = max((event["round"] for event in scene.events if event["event"] == "round"), default=0)
        say(f"{rounds} rounds of the run meanwhile; answered: {dict(answers.most_common())}")
        coordinator.signal(signal.SIGTERM)
        code = coordinator.wait(30)
        unexpected = len(re.findall("failed unexpectedly|Traceback", coordinator.said))
        say(f"the coordinator ended with {code}; {unexpected} unexpected errors in its log")
        return int(code != 0 or unexpected > 0)


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(main(int(given[0]) if given else 1_000_000, float(given[1]) if len(given) > 1 else 20.0))

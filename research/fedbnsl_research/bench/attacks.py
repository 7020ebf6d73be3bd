"""Attacks on a coordinator during a run: whether it stays up, whether the graph stays the same, and its memory.

The attackers are threads of this process, like the sites; the coordinator is a separate process. Everything stays on
loopback, and every attack ends with its run.
"""

import random
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedbnsl.errors import ResultError
from fedbnsl.identity.certificates import Credentials, Name
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.channel import split_address
from fedbnsl.protocol.messages import PROTOCOL_VERSION
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.join_run import take_part
from fedbnsl_client.site import identity
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_client.site.identity import Link
from fedbnsl_research.bench.processes import MIB, Reading
from fedbnsl_research.trials.harness import Row, site_datasets
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_workbench import localnet
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise

_SITES = 3
_VARIABLES = 50
_ROUNDS = 60
_SAMPLES = 500
_ATTACKERS = 30
_HUGE_BYTES = 15 * 2**20
_MOST_NAMES = 65_535
_IDLE = 1300
_DEADLINE_S = 120.0
_CALL_S = 30.0
_READING_S = 0.1
_CALLS = "/fedbnsl.wire.Federation/"

Attack = Callable[[str, Credentials, threading.Event], int]


def attacks() -> Iterator[Row]:
    """A run of three sites over TLS without an attack, then during each attack."""
    plan = Plan.load("fed-sparse").with_settings(
        n_participants=_SITES, rounds=_ROUNDS, join_deadline_s=_DEADLINE_S, run_deadline_s=_DEADLINE_S
    )
    tables = site_datasets(synthesise(_VARIABLES, _VARIABLES, _SITES, _SAMPLES, 2))
    plan = plan.with_settings(variables=next(iter(tables.values())).variables)
    with tempfile.TemporaryDirectory() as scratch:
        simulate(plan, tables, Path(scratch, "alone"))
        expected = Path(scratch, "alone", "weights.csv").read_bytes()
        members = Federation.create(
            Path(scratch, "federation"), name="lab", hosts=("127.0.0.1",), port=50051, days=2, ca_days=2
        )
        credentials = {site: _enrolled(members, Path(scratch, site), site) for site in (*tables, "revoked", "extra")}
        members.revoke("revoked")
        for number, (name, (attacker, attack)) in enumerate(_ATTACKS.items()):
            out = Path(scratch, f"run-{number}")
            done, reading = _attacked(plan, tables, members, credentials, attack, attacker, out)
            same = (out / "weights.csv").read_bytes() == expected
            yield {
                "figure": f"a coordinator during a run, {_SITES} sites, d={_VARIABLES}: {name}",
                "attempts": done,
                "run": "finished, same bits" if same else "finished, other bits",
                "MiB at most": round(reading.highest_bytes / MIB),
                "open files at the end": reading.n_files,
            }


def _enrolled(members: Federation, folder: Path, site: str) -> Credentials:
    bundle = members.approve(identity.request(folder, Name(members.name, site)), days=2)
    return identity.enrol(folder, bundle, expected_fingerprint=members.fingerprint).credentials()


def _attacked(
    plan: Plan,
    tables: Mapping[str, Dataset],
    members: Federation,
    credentials: Mapping[str, Credentials],
    attack: Attack,
    attacker: str,
    out: Path,
) -> tuple[int, Reading]:
    """Play one run during an attack: attempts, and the last reading of the coordinator's process.

    Raises
    ------
    FedbnslError
        If the coordinator or a site fails.
    """
    over = threading.Event()
    with (
        ThreadPoolExecutor(_SITES + 1) as threads,
        localnet.LocalNetwork(out / "logs") as network,
        ExitStack() as at_end,
    ):
        at_end.callback(over.set)  # first: an attack ends with its run, however that ends
        address = localnet.start_coordinator(network, plan, out, seeds={}, federation=members.folder)
        pid = network.pid(localnet.COORDINATOR)
        attacking = threads.submit(attack, address, credentials[attacker], over)
        last = Reading.of(pid)
        sites = [
            threads.submit(
                take_part,
                PublicTable(site, table),
                Link(address, credentials[site]),
                patience_s=_DEADLINE_S,
            )
            for site, table in tables.items()
        ]
        while not network.ended(localnet.COORDINATOR):
            network.check()
            with suppress(OSError):  # it ended just now
                last = Reading.of(pid)
            over.wait(_READING_S)
        over.set()
        network.check()
        for site in sites:
            site.result()
        done = attacking.result()
    if not done and attack is not _ATTACKS["no attack"][1]:
        raise ResultError("the attack did nothing")
    return done, last


def _no_attack(address: str, credentials: Credentials, over: threading.Event) -> int:
    return 0


def _idle_connections(address: str, credentials: Credentials, over: threading.Event) -> int:
    """Connections that never say anything, opened again as they are closed."""
    done, where = 0, split_address(address)
    with ExitStack() as opened:
        while not over.is_set() and done < 10 * _IDLE:
            with suppress(OSError):
                opened.enter_context(socket.create_connection(where, timeout=1))
            done += 1
            if done % _IDLE == 0:
                over.wait(1.0)
                opened.close()
    return done


def _calls(
    address: str, credentials: Credentials, over: threading.Event, *, method: str, messages: Callable[[int], bytes]
) -> int:
    """The same call again and again, by many at once, each on connections of its own."""

    def calling(number: int) -> int:
        done = 0
        while not over.is_set():
            secure = grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.certificate)
            own = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
            with grpc.secure_channel(address, secure, own) as channel, suppress(grpc.RpcError):
                done += 1
                call = cast(Callable[..., bytes], channel.unary_unary(_CALLS + method))
                call(messages(number), timeout=_CALL_S)
            over.wait(0.05)
        return done

    with ThreadPoolExecutor(_ATTACKERS) as attackers:
        return sum(attackers.map(calling, range(_ATTACKERS)))


def _watchers(address: str, credentials: Credentials, over: threading.Event) -> int:
    """Streams of health that nobody ends."""
    secure = grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.certificate)
    done = 0
    while not over.is_set():
        with grpc.secure_channel(address, secure, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub: Any = cast(Any, health_pb2_grpc).HealthStub(channel)  # without types
            streams = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(500)]
            done += len(streams)
            over.wait(1.0)
            for stream in streams:
                stream.cancel()
    return done


def _garbage(number: int) -> bytes:
    rng = random.Random(number)  # noqa: S311  # not a secret
    return rng.randbytes(rng.randrange(20_000))


def _too_many_names(_: int) -> bytes:
    names = [f"{number:0200}" for number in range(_MOST_NAMES)]
    return federation.JoinRequest(
        protocol_version=PROTOCOL_VERSION, site="extra", variable=names, n_samples=10
    ).SerializeToString()


_ATTACKS: dict[str, tuple[str, Attack]] = {
    "no attack": ("extra", _no_attack),
    f"{_ATTACKERS} callers with a revoked certificate, 15 MiB each": (
        "revoked",
        partial(_calls, method="PushUpdate", messages=lambda _: bytes(_HUGE_BYTES)),
    ),
    f"{_IDLE} idle connections without a certificate": ("extra", _idle_connections),
    f"{_ATTACKERS} callers of one enrolled site, garbage": (
        "extra",
        partial(_calls, method="PushUpdate", messages=_garbage),
    ),
    f"{_ATTACKERS} callers of one enrolled site, {_MOST_NAMES} names": (
        "extra",
        partial(_calls, method="Join", messages=_too_many_names),
    ),
    "streams of health": ("extra", _watchers),
}

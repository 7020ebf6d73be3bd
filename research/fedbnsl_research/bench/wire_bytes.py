"""The bytes of a run, counted three ways: by the paper's formula, as serialised protobuf, and on TCP."""

import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Self

from fedbnsl.identity.certificates import Credentials, Name
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import Finished
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.join_run import take_part
from fedbnsl_client.site import identity
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_client.site.identity import Link
from fedbnsl_research.trials.harness import N_SAMPLES, Row, site_datasets
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_workbench import localnet
from fedbnsl_workbench.scoring.evaluation import read_result
from fedbnsl_workbench.tables.synthetic import synthesise

_SITES = 8
_CHUNK_BYTES = 64 * 1024
_PATIENCE_S = 180.0


class CountingProxy:
    """Passes connections on loopback through to `upstream`, host:port, and counts their payload.

    Attributes
    ----------
    address
        host:port of the proxy.
    up, down
        Bytes of the chunks towards upstream, and of those from there.
    """

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = host, int(port)
        self.up: list[int] = []
        self.down: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake the thread that accepts
        self._accepting.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was shut down
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._upstream) as server:
            back = threading.Thread(target=_pump, args=(server, client, self.down), daemon=True)
            back.start()
            _pump(client, server, self.up)
            back.join()


def _pump(source: socket.socket, sink: socket.socket, counts: list[int]) -> None:
    with suppress(OSError):  # an end hung up: nothing more will be counted
        while chunk := source.recv(_CHUNK_BYTES):
            counts.append(len(chunk))
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)


@dataclass(frozen=True)
class RunBytes:
    """The bytes of one run, both directions and all sites together.

    Attributes
    ----------
    formula, serialised
        Of updates and tasks: as the paper counts them, and as protobuf.
    protobuf
        Of all messages, joins, receipts and the end included.
    tcp
        Payload of all connections.
    n_calls
        Calls that carried them: a join, the last pull, and two a round, for every site.
    """

    formula: int
    serialised: int
    protobuf: int
    tcp: int
    n_calls: int

    @property
    def framing_bytes(self) -> float:
        """Bytes a call that are not protobuf: HTTP/2 frames and headers, records and handshakes of TLS."""
        return (self.tcp - self.protobuf) / self.n_calls


def run_bytes(plan: Plan, tables: Mapping[str, Dataset], *, tls: bool) -> RunBytes:
    """Count the bytes of one run over loopback, whose sites are threads of this process."""
    variables = next(iter(tables.values())).variables
    plan = plan.with_settings(n_participants=len(tables), variables=variables, join_deadline_s=_PATIENCE_S)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "run")
        admissions = [PublicTable(site, table) for site, table in tables.items()]
        federation, credentials = None, dict[str, Credentials]()
        if tls:
            federation = Path(scratch, "federation")
            credentials = _enrol(federation, Path(scratch), list(tables))
        # The network ends before the threads are waited for: without a coordinator they end as well.
        with (
            ThreadPoolExecutor(len(tables)) as threads,
            localnet.LocalNetwork(out / "logs") as network,
            CountingProxy(localnet.start_coordinator(network, plan, out, seeds={}, federation=federation)) as proxy,
        ):

            def join(admission: PublicTable) -> SparseMatrix:
                link = Link(proxy.address, credentials.get(admission.site))
                learned = take_part(admission, link, patience_s=_PATIENCE_S)
                return SparseMatrix.on_support(learned.weights, learned.dag)

            graphs = list(threads.map(join, admissions))
        result = read_result(out)
    # The results are written before the last message: the graph, to every site.
    ends = sum(codec.finished_bytes(Finished(graph), value_type=plan.value_type) for graph in graphs)
    sent = {kind: result["bytes"]["up"][kind] + result["bytes"]["down"][kind] for kind in ("formula", "serialised")}
    return RunBytes(
        formula=sent["formula"],
        serialised=sent["serialised"],
        protobuf=sent["serialised"] + result["bytes"]["control"] + ends,
        tcp=sum(proxy.up) + sum(proxy.down),
        n_calls=len(tables) * (2 + 2 * len(result["rounds"])),
    )


def _enrol(folder: Path, sites_folder: Path, sites: Sequence[str]) -> dict[str, Credentials]:
    """A federation on this machine, and what each of its sites shows."""
    federation = Federation.create(folder, name="bench", hosts=["127.0.0.1"], days=1, ca_days=1)
    credentials: dict[str, Credentials] = {}
    for site in sites:
        request = identity.request(sites_folder / site, Name(federation.name, site))
        bundle = federation.approve(request, days=1)
        own = identity.enrol(sites_folder / site, bundle, expected_fingerprint=federation.fingerprint)
        credentials[site] = own.credentials()
    return credentials


def wire() -> Iterator[Row]:
    """The plan fed-sparse on generated data at three sizes, over TLS and in plaintext."""
    plan = Plan.load("fed-sparse")
    for d, tls in product((20, 100, 200), (True, False)):
        truth = synthesise(d, d, _SITES, N_SAMPLES, 2)
        counted = run_bytes(plan, site_datasets(truth), tls=tls)
        yield {
            "figure": f"bytes of a run at d={d}, P={_SITES}, {'with' if tls else 'without'} TLS",
            "MB formula": round(counted.formula / 1e6, 3),
            "MB serialised": round(counted.serialised / 1e6, 3),
            "MB all protobuf": round(counted.protobuf / 1e6, 3),
            "MB TCP": round(counted.tcp / 1e6, 3),
            "TCP / formula": round(counted.tcp / counted.formula, 3),
            "calls": counted.n_calls,
            "bytes a call beside protobuf": round(counted.framing_bytes),
        }

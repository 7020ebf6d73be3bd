"""Sites that send what real ones sent in one process: so light that two cores carry thousands beside a coordinator.

To a coordinator they are real: each has its own connection, joins, pulls every task and pushes its answer to it.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self

import grpc

from fedbnsl import codec
from fedbnsl.channel import LONG_POLL_S, client_options, require_loopback
from fedbnsl.errors import ResultError
from fedbnsl.messages import JoinRequest, LocalUpdate, RoundTask, SiteState
from fedbnsl.plan.plan import Plan
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.algorithm import round_loop
from fedbnsl_server.algorithm.consensus_graph import consensus_graph
from fedbnsl_server.sites.mailbox import UpdateCheck
from fedbnsl_server.store.learned_graph import named_edges
from fedbnsl_workbench.simulate import InProcessExchange

Recording = Mapping[str, Sequence[bytes]]
"""By site, its answers to all rounds, as they are sent."""


class _Recorder(InProcessExchange):
    """Keeps every update."""

    def __init__(self, plan: Plan, participants: Mapping[str, Participant]) -> None:
        super().__init__(plan, participants, run=0)
        self.updates: dict[str, list[bytes]] = defaultdict(list)

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        """See `InProcessExchange.exchange`."""
        updates = super().exchange(tasks, snapshots, check)
        for site, update in updates.items():
            sent = codec.update_to_bytes(
                update, run=0, value_type=self._plan.value_type, dense=self._plan.dense_messages
            )
            self.updates[site].append(sent)
        return updates


def record(plan: Plan, tables: Mapping[str, Dataset]) -> tuple[dict[str, Any], Recording]:
    """A run in one process: of its result the sites, the edges and the seconds of the global steps; and the answers."""
    sites = _Recorder(plan, {site: Participant(site, table, plan) for site, table in tables.items()})
    rows = {site: table.n_samples for site, table in tables.items()}
    global_s: list[float] = []
    state = round_loop.run(
        plan, plan.column_names, rows, sites, on_round=lambda state, record: global_s.append(record.global_s)
    )
    graph = consensus_graph(state, plan, plan.edge_mask(plan.column_names))
    alone = {
        "sites": rows,
        "edges": named_edges(graph, plan.columns(plan.column_names)),
        "seconds": {"global": sum(global_s)},
    }
    return alone, sites.updates


class RecordedSites:
    """Sites of one run, all on the event loop of one thread."""

    def __init__(self, plan: Plan, tables: Mapping[str, Dataset], recording: Recording) -> None:
        self._plan, self._tables, self._recording = plan, tables, recording
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recorded sites", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def join(self, site: str, address: str) -> Future[None]:
        """Let a site take part in the run until its end."""
        require_loopback(address)
        return asyncio.run_coroutine_threadsafe(self._take_part(site, address), self._loop)

    async def _leave(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _take_part(self, site: str, address: str) -> None:
        timeout_s, answers = self._plan.run_deadline_s, self._recording[site]
        request = JoinRequest(site, self._plan.column_names, self._tables[site].n_samples)
        options = [*client_options(), ("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            stub: Any = federation_grpc.FederationStub(channel)
            reply = await stub.Join(codec.encode_join(request), timeout=timeout_s)
            pull = federation.PullRequest(run=reply.run & 0xFFFF_FFFF, site=site)
            while True:
                pulled = await stub.PullTask(pull, timeout=LONG_POLL_S + timeout_s)
                if pulled.HasField("finished"):
                    if pulled.finished.stopped_because:
                        raise ResultError(f"{site}: {pulled.finished.stopped_because}")
                    return
                if pulled.HasField("task"):
                    t: int = pulled.task.round
                    update = federation.Update.FromString(answers[t - 1])
                    update.run = pull.run
                    await stub.PushUpdate(update, timeout=timeout_s)
                    pull.last_round = t

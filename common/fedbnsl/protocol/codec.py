"""Messages to protobuf and back. A decoded message is valid; anything else raises MalformedMessageError.

Where a run's messages are dense (`Plan.dense_messages`), B_p, beta_p and W cross the wire with all d^2 entries; graphs
and refitted weights are sparse in every run.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import get_args

import numpy as np

from fedbnsl.console.shown import shown
from fedbnsl.errors import MalformedMessageError
from fedbnsl.graphs.directed_by import DirectedBy
from fedbnsl.graphs.graph import has_cycle
from fedbnsl.graphs.pag import ARROW, CIRCLE, TAIL
from fedbnsl.protocol import versions as versions_of
from fedbnsl.protocol.channel import MAX_MESSAGE_BYTES
from fedbnsl.protocol.chunks import wire_bytes
from fedbnsl.protocol.matrix_codec import (
    Encoding,
    decode_covariances,
    decode_dense,
    decode_matrix,
    encode_covariances,
    encode_dense,
    encode_matrix,
    expect_form,
    finite,
)
from fedbnsl.protocol.messages import (
    DIGEST_BYTES,
    RUN_STATES,
    Content,
    EdgeDraws,
    FindingCode,
    Finished,
    JoinReply,
    JoinRequest,
    LeaveReason,
    LedgerHead,
    LinkMarks,
    LocalUpdate,
    Loss,
    MaskedSum,
    Phase,
    RoundTask,
    RunStatus,
    SiteProgress,
    SiteState,
    TableFinding,
    Units,
    is_site_name,
    is_variable_name,
    run_tag,
)
from fedbnsl.protocol.plain_codec import from_wire, to_wire
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.rounds.keys import decode_memberships, encode_membership
from fedbnsl.rounds.kinds import KINDS, Kind
from fedbnsl.rounds.residual_moments import most_moments
from fedbnsl.wire import federation_pb2 as federation

_DIRECTED_BY: Mapping[str, DirectedBy] = dict(zip(get_args(DirectedBy), get_args(DirectedBy), strict=True))

MAX_VARIABLES = 65_535  # the largest d whose flat index fits 32 bits
MAX_NAME_LENGTH = 1_000
_MAX_VERSION_LENGTH = 64

# Room for the fields of fixed size of any message, a ledger head among them.
_SMALL_BYTES = 1024


def largest_update_bytes(n_variables: int, further_bytes: int = 0) -> int:
    """Serialised bytes that no update exceeds.

    An answer holds at most d^2 numbers of 8 bytes, each with an index of up to 5 bytes, or `most_moments` of 8 bytes;
    up to 32 bytes a variable besides, and what the plan adds (`Plan.further_bytes`).
    """
    d = n_variables
    return 16 * d * d + 32 * d + further_bytes + _SMALL_BYTES


def largest_reply_bytes(n_variables: int) -> int:
    """Serialised bytes that no reply of the coordinator exceeds.

    The largest one tells a site its B_p, its beta_p and W; any other fits into one call, or into the room of these.
    """
    return max(MAX_MESSAGE_BYTES, 3 * largest_update_bytes(n_variables))


def largest_call_bytes(variables: Sequence[str], further_bytes: int = 0) -> int:
    """Serialised bytes that no call of a site exceeds in a run on these variables; larger updates come in chunks.

    The names of a table get twice their room and 64 KiB, so that a table with other columns is told which.
    """
    application = 2**16 + 2 * sum(len(name.encode()) + 4 for name in variables) + _SMALL_BYTES
    return min(max(largest_update_bytes(len(variables), further_bytes), application), MAX_MESSAGE_BYTES)


def decode_ledger(wire: federation.LedgerHead) -> LedgerHead:
    """What a site's ledger says."""
    sizes = (len(wire.ledger_id), len(wire.dataset), len(wire.digest))
    if sizes != (16, 16, 32):
        raise MalformedMessageError(f"a ledger head with ids and digest of {sizes} bytes; expected (16, 16, 32)")
    return from_wire(LedgerHead, wire)


def encode_join(request: JoinRequest) -> federation.JoinRequest:
    """Wire form of a site's application."""
    return to_wire(federation.JoinRequest, request, variable=request.variables, version=request.versions)


def decode_join(wire: federation.JoinRequest) -> JoinRequest:
    """A site's application."""
    variables = _decode_variables(wire.variable)
    _check_name(wire.site)
    if wire.n_samples < 1:
        raise MalformedMessageError("a table without rows")
    ledger = decode_ledger(wire.ledger) if wire.HasField("ledger") else None
    versions = dict(sorted(wire.version.items()))  # protobuf keeps no order of a map
    if wrong := versions_of.why_unusable(versions):
        raise MalformedMessageError(wrong)
    return from_wire(JoinRequest, wire, variables=variables, ledger=ledger, versions=versions)


def _decode_variables(names: Iterable[str]) -> tuple[str, ...]:
    variables = tuple(names)
    if not 2 <= len(variables) <= MAX_VARIABLES:
        raise MalformedMessageError(f"a table of {len(variables)} variables; expected 2 to {MAX_VARIABLES}")
    if len(set(variables)) != len(variables):
        raise MalformedMessageError("a table with a repeated variable name")
    for name in variables:
        _check_name(name)
        if not is_variable_name(name):
            raise MalformedMessageError(
                f"variable {shown(name, 100)!r} has control or bidirectional characters, or is a name that graph files "
                "reserve"
            )
    return variables


def check_text(what: str, text: str) -> None:
    """Refuse a short text of the other side that people could not read."""
    if len(text) > MAX_NAME_LENGTH or not text.isprintable():
        raise MalformedMessageError(f"a {what} that is too long or cannot be printed")


def _check_name(name: str) -> None:
    if not name.strip() or len(name) > MAX_NAME_LENGTH:
        raise MalformedMessageError(f"an empty name, or one of more than {MAX_NAME_LENGTH} characters")


def encode_join_reply(reply: JoinReply, *, dense: bool = False) -> federation.JoinReply:
    """Wire form of the coordinator's reply; its snapshot has full precision, to restore a state bit for bit."""
    held = reply.snapshot
    W = held.global_weights
    wire = to_wire(
        federation.JoinReply,
        reply,
        plan=reply.plan_toml,
        variable=reply.variables,
        global_weights=None if W is None else encode_matrix(W, value_type="float64"),
        units=_encode_units(held.units),
        membership=map(encode_membership, held.memberships),
        completed_by=encode_covariances(held.completed_by),
    )
    if dense:
        wire.dense_local_weights.CopyFrom(encode_dense(held.local_weights, value_type="float64"))
        wire.dense_consensus_dual.CopyFrom(encode_dense(held.consensus_dual, value_type="float64"))
    else:
        wire.local_weights.CopyFrom(encode_matrix(held.local_weights, value_type="float64"))
        wire.consensus_dual.CopyFrom(encode_matrix(held.consensus_dual, value_type="float64"))
    return wire


def decode_join_reply(wire: federation.JoinReply) -> JoinReply:
    """The coordinator's reply, sparse or dense: the plan, which decides that, comes in the same message."""
    variables = _decode_variables(wire.variable)
    d = len(variables)
    if wire.WhichOneof("weights") == "dense_local_weights":
        expect_form(wire.WhichOneof("dual"), "dense_consensus_dual")
        B = decode_dense(wire.dense_local_weights, n_variables=d)
        beta = decode_dense(wire.dense_consensus_dual, n_variables=d)
    else:
        expect_form(wire.WhichOneof("weights"), "local_weights")
        expect_form(wire.WhichOneof("dual"), "consensus_dual")
        B = decode_matrix(wire.local_weights, n_variables=d)
        beta = decode_matrix(wire.consensus_dual, n_variables=d)
    W = decode_matrix(wire.global_weights, n_variables=d) if wire.HasField("global_weights") else None
    completed_by = decode_covariances(wire.completed_by, d)
    snapshot = SiteState(B, beta, W, _decode_units(wire, d), decode_memberships(wire.membership), completed_by)
    return from_wire(JoinReply, wire, plan_toml=wire.plan, variables=variables, snapshot=snapshot)


def encode_task(task: RoundTask, *, value_type: str, dense: bool = False) -> federation.Task:
    """Wire form of a round's task; `dense` as the plan says."""
    memberships = map(encode_membership, task.memberships)
    completed_by = encode_covariances(task.completed_by)
    wire = to_wire(
        federation.Task, task, units=_encode_units(task.units), membership=memberships, completed_by=completed_by
    )
    KINDS[task.content.kind].encode_task(task.content, wire, Encoding(value_type, dense))
    return wire


def task_digest(content: Content, units: Units | None, lost: Sequence[Loss] = ()) -> bytes:
    """32 bytes that identify what a task asks for: its content, the units in force, and who is not asked any more."""
    wire = federation.Task(lost=[to_wire(federation.Loss, one) for one in lost], units=_encode_units(units))
    KINDS[content.kind].encode_task(content, wire, Encoding("float64"))
    return hashlib.sha256(wire.SerializeToString(deterministic=True)).digest()


def decode_task(wire: federation.Task, *, n_variables: int, dense: bool = False) -> RoundTask:
    """A round's task."""
    kind = _kind(wire, "task")
    content = kind.decode_task(wire, n_variables, Encoding("", dense))
    units, memberships = _decode_units(wire, n_variables), decode_memberships(wire.membership)
    completed_by = decode_covariances(wire.completed_by, n_variables)
    return RoundTask(wire.round, content, wire.contributed, units, memberships, _decode_losses(wire), completed_by)


def _decode_losses(wire: federation.Task) -> tuple[Loss, ...]:
    lost = tuple(from_wire(Loss, one) for one in wire.lost)
    rounds = [one.round for one in lost]
    if not all(is_site_name(one.site) for one in lost) or len({one.site for one in lost}) < len(lost):
        raise MalformedMessageError("lost sites of invalid or repeated names")
    if rounds != sorted(rounds) or any(not 1 <= t <= wire.round for t in rounds):
        raise MalformedMessageError("sites that were lost in no round so far, or not in this order")
    return lost


def _encode_units(units: Units | None) -> federation.Units | None:
    if units is None:
        return None
    return federation.Units(
        centre=units.centres.tolist(),
        scale=units.scales.tolist(),
        limit=np.nan_to_num(units.limits, posinf=0.0).ravel().tolist(),
    )


def _decode_units(wire: federation.Task | federation.JoinReply, n_variables: int) -> Units | None:
    if not wire.HasField("units"):
        return None
    centres, scales, limits = finite(wire.units.centre), finite(wire.units.scale), finite(wire.units.limit)
    sizes = centres.size in (0, n_variables) and scales.size == n_variables and limits.size in (0, 2 * n_variables)
    if not sizes or (scales <= 0).any() or (limits < 0).any():
        raise MalformedMessageError(
            f"units of {centres.size} centres, {scales.size} scales and {limits.size} limits, a scale not "
            f"above 0, or a limit below 0; expected {n_variables}, and twice as many limits"
        )
    limits = np.where(limits > 0.0, limits, np.inf)
    return Units(centres, scales, limits.reshape(2, -1) if limits.size else limits)


def _kind(wire: federation.Task | federation.Update, what: str) -> Kind:
    if wire.round < 1:
        raise MalformedMessageError(f"{what} for round 0; rounds count from 1")
    field = wire.WhichOneof("content")
    if field is None:
        raise MalformedMessageError(f"{what} of unknown kind")
    return KINDS[field.removesuffix("_dense").removesuffix("_steps")]


def encode_finished(finished: Finished, *, value_type: str) -> federation.Finished:
    """Wire form of the end of a run."""
    graph, draws, marks = finished.graph, finished.draws, finished.marks
    return to_wire(
        federation.Finished,
        finished,
        graph=None if graph is None else encode_matrix(graph, value_type=value_type),
        draws=None if draws is None else federation.EdgeDraws(draws=draws.draws, counts=chain(*draws.counts)),
        marks=None if marks is None else federation.LinkMarks(
            link=chain(*marks.links), draws=marks.draws, count=chain(*marks.counts)
        ),
    )  # fmt: skip


def decode_finished(wire: federation.Finished, *, n_variables: int) -> Finished:
    """The end of a run."""
    graph = decode_matrix(wire.graph, n_variables=n_variables) if wire.HasField("graph") else None
    if graph is not None and has_cycle(graph.index, n_variables):
        raise MalformedMessageError("the graph at the end of the run has a cycle; a Bayesian network has none")
    draws = _decode_draws(wire.draws) if wire.HasField("draws") else None
    if unknown := set(wire.directed_by).difference(_DIRECTED_BY):
        raise MalformedMessageError(f"the end of the run has edges directed by {shown(min(unknown))!r}")
    by: tuple[DirectedBy, ...] = tuple(_DIRECTED_BY[one] for one in wire.directed_by)
    marks = _decode_marks(wire.marks, n_variables) if wire.HasField("marks") else None
    network = wire.network
    early, undecided = wire.search_ended_early, tuple(wire.undecided)
    return Finished(graph, wire.stopped_because, early, draws, undecided, by, marks, network)


def _decode_marks(wire: federation.LinkMarks, n_variables: int) -> LinkMarks:
    told, counts = list(wire.link), list(wire.count)
    links = tuple(zip(told[::4], told[1::4], told[2::4], told[3::4], strict=False))
    of_draws = tuple(zip(counts[::2], counts[1::2], strict=False))
    possible = all(i < j < n_variables and {a, b} <= {CIRCLE, ARROW, TAIL} for i, j, a, b in links)
    ordered = all(one[:2] < other[:2] for one, other in pairwise(links))
    counted = len(counts) == (2 * len(links) if wire.draws else 0) and all(n <= wire.draws for n in counts)
    if len(told) % 4 or not (possible and ordered and counted):
        raise MalformedMessageError(
            f"{len(told)} numbers of links and {len(counts)} counts of {wire.draws} draws at the end of the run; "
            "expected two places in order and two marks a link, and two counts a link of draws"
        )
    return LinkMarks(links, wire.draws, of_draws)


def _decode_draws(wire: federation.EdgeDraws) -> EdgeDraws:
    counts = list(wire.counts)
    of_edges = tuple(zip(counts[::3], counts[1::3], counts[2::3], strict=False))
    possible = all(one + other <= adjacent <= wire.draws for adjacent, one, other in of_edges)
    if not wire.draws or len(counts) % 3 or not possible:
        raise MalformedMessageError(
            f"{len(counts)} counts of {wire.draws} draws at the end of the run; expected at least one draw and three "
            "counts an edge: with an edge, directed like it, the other way"
        )
    return EdgeDraws(wire.draws, of_edges)


def encode_update(update: LocalUpdate, *, run: int, value_type: str, dense: bool = False) -> federation.Update:
    """Wire form of a site's answer; `dense` as the plan says."""
    findings = [
        federation.TableFinding(
            code=federation.FindingCode.ValueType(found.code.value), variable=found.variables, count=found.count
        )
        for found in update.findings
    ]
    wire = to_wire(federation.Update, update, run=run_tag(run), finding=findings)
    content = update.content
    if isinstance(content, MaskedSum):
        numbers = content.numbers.astype("<u8").tobytes()
        wire.masked_sum.CopyFrom(
            federation.MaskedSum(kind=content.of, numbers=numbers, task_digest=content.task_digest)
        )
    else:
        KINDS[content.kind].encode_answer(content, wire, Encoding(value_type, dense))
    return wire


def _decode_masked(wire: federation.MaskedSum, n_variables: int) -> MaskedSum:
    most = most_moments(n_variables)
    if len(wire.numbers) > 8 * most:
        raise MalformedMessageError(f"{len(wire.numbers) // 8} masked numbers; expected at most {most}")
    if wire.kind not in KINDS or len(wire.numbers) % 8 or len(wire.task_digest) != DIGEST_BYTES:
        raise MalformedMessageError(
            "a part of secure aggregation of an unknown kind, or whose numbers or task digest have another size"
        )
    numbers = np.frombuffer(wire.numbers, dtype="<u8").astype(np.uint64)
    return MaskedSum(wire.kind, numbers, wire.task_digest)


def decode_update(wire: federation.Update, *, n_variables: int, dense: bool = False) -> LocalUpdate:
    """A site's answer."""
    content: Content
    if wire.WhichOneof("content") == "masked_sum" and wire.round:
        content = _decode_masked(wire.masked_sum, n_variables)
    else:
        content = _kind(wire, "update").decode_answer(wire, n_variables, Encoding("", dense))
    ledger = decode_ledger(wire.ledger) if wire.HasField("ledger") else None
    return LocalUpdate(wire.site, wire.round, content, ledger, _decode_findings(wire.finding, n_variables))


def _decode_findings(wire: Sequence[federation.TableFinding], n_variables: int) -> tuple[TableFinding, ...]:
    if sum(max(len(found.variable), 1) for found in wire) > len(FindingCode) * n_variables:
        raise MalformedMessageError(f"{len(wire)} findings about a table of {n_variables} variables")
    findings: list[TableFinding] = []
    for found in wire:
        variables = tuple(found.variable)
        if found.code not in {code.value for code in FindingCode}:
            raise MalformedMessageError(f"a finding of unknown code {found.code}")
        if not variables or variables[-1] >= n_variables or any(b <= a for a, b in pairwise(variables)):
            raise MalformedMessageError("a finding without variables, or with variables out of range or not ascending")
        if (found.code == FindingCode.ROWS_OF_GROUPS.value) != (found.count > 0):
            raise MalformedMessageError(f"a finding of code {found.code} that counts {found.count} groups")
        findings.append(TableFinding(FindingCode(found.code), variables, found.count))
    return tuple(findings)


def update_to_bytes(update: LocalUpdate, *, run: int, value_type: str, dense: bool = False) -> bytes:
    """A site's answer as it is sent."""
    return encode_update(update, run=run, value_type=value_type, dense=dense).SerializeToString()


def update_from_bytes(data: bytes, *, n_variables: int, dense: bool = False) -> LocalUpdate:
    """The answer that `update_to_bytes` wrote."""
    return decode_update(federation.Update.FromString(data), n_variables=n_variables, dense=dense)


def release_to_bytes(
    task: RoundTask,
    update: LocalUpdate,
    *,
    run: int,
    value_type: str,
    dense: bool = False,
    private_key: bytes = b"",
    own_means: Sequence[float] = (),
) -> bytes:
    """A private answer with the task that it answers and what else the site keeps of it; never sent."""
    kept = federation.KeptRelease(
        task=encode_task(task, value_type=value_type, dense=dense),
        update=encode_update(update, run=run, value_type=value_type, dense=dense),
        private_key=private_key,
        own_means=own_means,
    )
    return kept.SerializeToString()


def release_from_bytes(data: bytes, *, n_variables: int, dense: bool = False) -> tuple[RoundTask, LocalUpdate]:
    """What `release_to_bytes` wrote."""
    kept = federation.KeptRelease.FromString(data)
    task = decode_task(kept.task, n_variables=n_variables, dense=dense)
    return task, decode_update(kept.update, n_variables=n_variables, dense=dense)


def private_key_in(data: bytes) -> bytes:
    """The private key that `release_to_bytes` wrote with an answer."""
    return federation.KeptRelease.FromString(data).private_key


def own_means_in(data: bytes) -> Matrix:
    """The own means that `release_to_bytes` wrote with an answer; empty: none."""
    return finite(federation.KeptRelease.FromString(data).own_means)


def task_bytes(task: RoundTask, *, value_type: str, dense: bool = False) -> int:
    """Serialised bytes of the message, or its chunks, that bring a task to a site."""
    reply = federation.PullReply(task=encode_task(task, value_type=value_type, dense=dense))
    return wire_bytes(reply, lambda chunk: federation.PullReply(chunk=chunk))


def update_bytes(update: LocalUpdate, *, run: int, value_type: str, dense: bool = False) -> int:
    """Serialised bytes of the message, or its chunks, that bring an update to the coordinator."""
    wire = encode_update(update, run=run, value_type=value_type, dense=dense)
    return wire_bytes(wire, lambda chunk: update_chunk(wire, chunk))


def update_chunk(update: federation.Update, chunk: federation.Chunk) -> federation.Update:
    """The message that carries a chunk of an update, and what the site has spent: also of one that comes too late."""
    ledger = update.ledger if update.HasField("ledger") else None
    return federation.Update(run=update.run, site=update.site, round=update.round, ledger=ledger, chunk=chunk)


def finished_bytes(finished: Finished, *, value_type: str) -> int:
    """Serialised bytes of the message, or its chunks, that tell a site the end of the run."""
    reply = federation.PullReply(finished=encode_finished(finished, value_type=value_type))
    return wire_bytes(reply, lambda chunk: federation.PullReply(chunk=chunk))


def encode_status(status: RunStatus) -> federation.StatusReply:
    """Wire form of where a run stands."""
    sites = [
        to_wire(
            federation.SiteStatus,
            site,
            spent_units=site.spent_units or 0,
            has_ledger=site.spent_units is not None,
            why_left=federation.LeaveReason.ValueType(site.why_left.value),
        )
        for site in status.sites
    ]
    return to_wire(federation.StatusReply, status, member=sites)


def decode_status(wire: federation.StatusReply) -> RunStatus:
    """Where a run stands."""
    if wire.state not in RUN_STATES:
        state = shown(wire.state, 40)
        raise MalformedMessageError(f"unknown run state {state!r}; expected one of: {', '.join(RUN_STATES)}")
    check_text("version", wire.version)
    check_text("reason", wire.reason)
    check_text("name of a run", wire.name)
    if wire.site and not is_site_name(wire.site):
        raise MalformedMessageError("a status for an invalid site name")
    if not math.isfinite(wire.acyclicity):
        raise MalformedMessageError("an acyclicity that is not a finite number")
    _check_amounts(wire.elapsed_s, wire.time_unix_s)
    return from_wire(
        RunStatus,
        wire,
        sites=tuple(_decode_site(site) for site in wire.member),
        version=shown(wire.version, _MAX_VERSION_LENGTH),
        phase=decode_phase(wire.phase) if wire.HasField("phase") else None,
    )


def decode_phase(wire: federation.Phase) -> Phase:
    """What takes time at the coordinator."""
    check_text("phase", wire.what)
    check_text("phase", wire.detail)
    if wire.HasField("share") and not 0.0 <= wire.share <= 1.0:
        raise MalformedMessageError(f"a share of {wire.share}; expected 0 to 1")
    _check_amounts(wire.elapsed_s, wire.left_s)
    return from_wire(Phase, wire)


def _decode_site(wire: federation.SiteStatus) -> SiteProgress:
    if not is_site_name(wire.site):
        raise MalformedMessageError("the status of an invalid site name")
    _check_amounts(wire.last_seen_s, wire.online_s)
    if wire.spent_units and not wire.has_ledger:
        raise MalformedMessageError("a site with spent units but without a ledger")
    return from_wire(
        SiteProgress,
        wire,
        spent_units=wire.spent_units if wire.has_ledger else None,
        why_left=decode_leave_reason(wire.why_left),
    )


def decode_leave_reason(wire: int) -> LeaveReason:
    """The class; one that a later version has is not specified."""
    try:
        return LeaveReason(wire)
    except ValueError:
        return LeaveReason.UNSPECIFIED


def _check_amounts(*numbers: float) -> None:
    for number in numbers:
        if not (math.isfinite(number) and number >= 0):
            raise MalformedMessageError(f"a time of {number} s; expected a finite number of at least 0")

"""Messages to protobuf and back. Whatever decodes here is valid: everything else raises MalformedMessageError.

Where a run's messages are dense (`Plan.dense_messages`), B_p, beta_p and W cross the wire with all d^2 entries; graphs
and refitted weights are sparse in every run.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.messages import (
    RUN_STATES,
    FindingCode,
    Finished,
    JoinReply,
    JoinRequest,
    LedgerHead,
    LocalUpdate,
    RoundTask,
    RunStatus,
    SiteProgress,
    SiteState,
    TableFinding,
    TaskKind,
    is_site_name,
    is_variable_name,
    run_tag,
)
from fedbnsl.sparse import SparseMatrix
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import values_pb2 as values

MAX_VARIABLES = 65_535  # the largest d whose flat index fits 32 bits
MAX_NAME_LENGTH = 1_000


def encode_matrix(matrix: SparseMatrix, *, value_type: str) -> values.SparseMatrix:
    """Wire form of a sparse matrix: gaps between flat indices, values in the plan's `value_type`."""
    wire = values.SparseMatrix(n_variables=matrix.n_variables)
    if matrix.nnz:
        wire.index_gap.extend(np.diff(matrix.index, prepend=0).tolist())
        (wire.value32 if value_type == "float32" else wire.value).extend(matrix.value.tolist())
    return wire


def decode_matrix(wire: values.SparseMatrix, *, n_variables: int) -> SparseMatrix:
    """Sparse matrix from its wire form.

    Raises
    ------
    MalformedMessageError
        Unless n_variables is as expected, there is one gap for each value, values are finite, gaps after the first are
        at least 1 and every index is in range and off the diagonal.
    """
    if wire.n_variables != n_variables:
        raise MalformedMessageError(f"matrix over {wire.n_variables} variables; this run has {n_variables}")
    if wire.value and wire.value32:
        raise MalformedMessageError("matrix with values in both precisions")
    gap = np.array(wire.index_gap, dtype=np.int64)
    value = np.array(wire.value32 or wire.value, dtype=np.float64)
    if gap.size != value.size:
        raise MalformedMessageError(f"matrix with {gap.size} indices and {value.size} values")
    if gap.size > n_variables * (n_variables - 1):
        raise MalformedMessageError(f"matrix with {gap.size} entries; {n_variables} variables have fewer pairs")
    if (gap[1:] < 1).any():
        raise MalformedMessageError("matrix whose indices do not increase")
    index = np.cumsum(gap)
    if index.size and index[-1] >= n_variables**2:
        raise MalformedMessageError(f"matrix with index {index[-1]}; the last one is {n_variables**2 - 1}")
    if (index % (n_variables + 1) == 0).any():
        raise MalformedMessageError("matrix with an entry on the diagonal")
    if not np.isfinite(value).all():
        raise MalformedMessageError("matrix with a value that is not finite")
    return SparseMatrix(n_variables, index, value)


def encode_dense(matrix: SparseMatrix, *, value_type: str) -> values.DenseMatrix:
    """Wire form of all d^2 entries of a matrix, in the plan's `value_type`."""
    wire = values.DenseMatrix(n_variables=matrix.n_variables)
    (wire.value32 if value_type == "float32" else wire.value).extend(matrix.to_dense().ravel().tolist())
    return wire


def decode_dense(wire: values.DenseMatrix, *, n_variables: int) -> SparseMatrix:
    """Matrix with all d^2 entries, zeros and diagonal included, from its dense wire form.

    Raises
    ------
    MalformedMessageError
        Unless n_variables is as expected and there are d^2 finite values in one precision.
    """
    if wire.n_variables != n_variables:
        raise MalformedMessageError(f"matrix over {wire.n_variables} variables; this run has {n_variables}")
    if wire.value and wire.value32:
        raise MalformedMessageError("matrix with values in both precisions")
    value = np.array(wire.value32 or wire.value, dtype=np.float64)
    if value.size != n_variables**2:
        raise MalformedMessageError(f"dense matrix with {value.size} values; expected {n_variables**2}")
    if not np.isfinite(value).all():
        raise MalformedMessageError("matrix with a value that is not finite")
    return SparseMatrix(n_variables, np.arange(n_variables**2), value)


def _expect_form(found: str | None, expected: str) -> None:
    """Refuse weights in a representation that the plan does not use, or none at all."""
    if found != expected:
        raise MalformedMessageError(f"message with {found or 'no weights'}; this run sends {expected} here")


def _encode_ledger(head: LedgerHead) -> federation.LedgerHead:
    return federation.LedgerHead(
        ledger_id=head.ledger_id, n_entries=head.n_entries, digest=head.digest, spent_units=head.spent_units
    )


def _decode_ledger(wire: federation.LedgerHead) -> LedgerHead:
    if len(wire.ledger_id) != 16 or len(wire.digest) != 32:
        raise MalformedMessageError("a ledger head without its 16-byte id or its 32-byte digest")
    return LedgerHead(wire.ledger_id, wire.n_entries, wire.digest, wire.spent_units)


def encode_join(request: JoinRequest) -> federation.JoinRequest:
    """Wire form of a site's application."""
    return federation.JoinRequest(
        protocol_version=request.protocol_version,
        site=request.site,
        variable=request.variables,
        n_samples=request.n_samples,
        ledger=_encode_ledger(request.ledger) if request.ledger else None,
    )


def decode_join(wire: federation.JoinRequest) -> JoinRequest:
    """A site's application.

    Raises
    ------
    MalformedMessageError
        If names are missing, repeated, too long or too many, or the ledger head is cut.
    """
    variables = _decode_variables(wire.variable)
    _check_name(wire.site)
    if wire.n_samples < 1:
        raise MalformedMessageError("a table without rows")
    ledger = _decode_ledger(wire.ledger) if wire.HasField("ledger") else None
    return JoinRequest(wire.site, variables, wire.n_samples, wire.protocol_version, ledger)


def _decode_variables(names: Iterable[str]) -> tuple[str, ...]:
    variables = tuple(names)
    if not 2 <= len(variables) <= MAX_VARIABLES:
        raise MalformedMessageError(f"a table of {len(variables)} variables; between 2 and {MAX_VARIABLES} can be used")
    if len(set(variables)) != len(variables):
        raise MalformedMessageError("a table with a repeated variable name")
    for name in variables:
        _check_name(name)
        if not is_variable_name(name):
            raise MalformedMessageError(f"variable {name!r}: control characters, or a name that graph files reserve")
    return variables


def _check_name(name: str) -> None:
    if not name.strip() or len(name) > MAX_NAME_LENGTH:
        raise MalformedMessageError(f"an empty name, or one of more than {MAX_NAME_LENGTH} characters")


def encode_join_reply(reply: JoinReply, *, dense: bool = False) -> federation.JoinReply:
    """Wire form of the coordinator's answer; the snapshot always in full precision, it restores a state bit by bit."""
    wire = federation.JoinReply(
        run=reply.run,
        plan=reply.plan_toml,
        plan_digest=reply.plan_digest,
        variable=reply.variables,
        round=reply.round,
    )
    B, beta = reply.snapshot.local_weights, reply.snapshot.consensus_dual
    if dense:
        wire.dense_local_weights.CopyFrom(encode_dense(B, value_type="float64"))
        wire.dense_consensus_dual.CopyFrom(encode_dense(beta, value_type="float64"))
    else:
        wire.local_weights.CopyFrom(encode_matrix(B, value_type="float64"))
        wire.consensus_dual.CopyFrom(encode_matrix(beta, value_type="float64"))
    if reply.snapshot.global_weights is not None:
        wire.global_weights.CopyFrom(encode_matrix(reply.snapshot.global_weights, value_type="float64"))
    return wire


def decode_join_reply(wire: federation.JoinReply) -> JoinReply:
    """The coordinator's answer to an application: sparse or dense, for the plan that decides comes in the same message.

    Raises
    ------
    MalformedMessageError
        If names are missing, repeated, too long or too many, or a matrix is malformed.
    """
    variables = _decode_variables(wire.variable)
    d = len(variables)
    if wire.WhichOneof("weights") == "dense_local_weights":
        _expect_form(wire.WhichOneof("dual"), "dense_consensus_dual")
        B = decode_dense(wire.dense_local_weights, n_variables=d)
        beta = decode_dense(wire.dense_consensus_dual, n_variables=d)
    else:
        _expect_form(wire.WhichOneof("weights"), "local_weights")
        _expect_form(wire.WhichOneof("dual"), "consensus_dual")
        B = decode_matrix(wire.local_weights, n_variables=d)
        beta = decode_matrix(wire.consensus_dual, n_variables=d)
    W = decode_matrix(wire.global_weights, n_variables=d) if wire.HasField("global_weights") else None
    return JoinReply(
        run=wire.run,
        plan_toml=wire.plan,
        plan_digest=wire.plan_digest,
        variables=variables,
        snapshot=SiteState(B, beta, W),
        round=wire.round,
    )


def encode_task(task: RoundTask, *, value_type: str, dense: bool = False) -> federation.Task:
    """Wire form of a round's task; `dense` as the plan says."""
    wire = federation.Task(
        round=task.round,
        kind=federation.TaskKind.ValueType(task.kind.value),
        contributed=task.contributed,
        scale=task.scales.tolist(),
    )
    if dense and task.kind is TaskKind.ADMM:
        wire.dense_global_weights.CopyFrom(encode_dense(task.global_weights, value_type=value_type))
    else:
        wire.global_weights.CopyFrom(encode_matrix(task.global_weights, value_type=value_type))
    return wire


def decode_task(wire: federation.Task, *, n_variables: int, dense: bool = False) -> RoundTask:
    """A round's task.

    Raises
    ------
    MalformedMessageError
        For an unknown kind, round 0, a matrix that is malformed or in the wrong representation, or scales that are not
        d finite numbers above 0 (or none).
    """
    if wire.kind not in {kind.value for kind in TaskKind}:
        raise MalformedMessageError(f"task of unknown kind {wire.kind}")
    if wire.round < 1:
        raise MalformedMessageError("task for round 0; rounds count from 1")
    if dense and wire.kind == federation.TASK_KIND_ADMM:
        _expect_form(wire.WhichOneof("weights"), "dense_global_weights")
        weights = decode_dense(wire.dense_global_weights, n_variables=n_variables)
    else:
        _expect_form(wire.WhichOneof("weights"), "global_weights")
        weights = decode_matrix(wire.global_weights, n_variables=n_variables)
    scales = np.array(wire.scale, dtype=np.float64)
    if scales.size not in (0, n_variables) or not (np.isfinite(scales) & (scales > 0)).all():
        raise MalformedMessageError(f"{scales.size} scales, or one that is not a finite number above 0")
    return RoundTask(wire.round, TaskKind(wire.kind), weights, wire.contributed, scales)


def encode_finished(finished: Finished, *, value_type: str) -> federation.Finished:
    """Wire form of the end of a run."""
    wire = federation.Finished(stopped_because=finished.stopped_because)
    if finished.graph is not None:
        wire.graph.CopyFrom(encode_matrix(finished.graph, value_type=value_type))
    return wire


def decode_finished(wire: federation.Finished, *, n_variables: int) -> Finished:
    """The end of a run."""
    graph = decode_matrix(wire.graph, n_variables=n_variables) if wire.HasField("graph") else None
    return Finished(graph, wire.stopped_because)


def encode_update(update: LocalUpdate, *, run: int, value_type: str, dense: bool = False) -> federation.Update:
    """Wire form of a site's answer; `dense` as the plan says, but for a refit and for moments."""
    wire = federation.Update(
        run=run_tag(run),
        site=update.site,
        round=update.round,
        residual_variance=update.residual_variance.tolist(),
        ledger=_encode_ledger(update.ledger) if update.ledger else None,
        asked=update.asked,
        finding=[
            federation.TableFinding(code=federation.FindingCode.ValueType(found.code.value), variable=found.variables)
            for found in update.findings
        ],
    )
    (wire.moment32 if value_type == "float32" else wire.moment).extend(update.moments.tolist())
    if dense and not update.residual_variance.size and not update.moments.size:
        wire.dense_local_weights.CopyFrom(encode_dense(update.local_weights, value_type=value_type))
    else:
        wire.local_weights.CopyFrom(encode_matrix(update.local_weights, value_type=value_type))
    return wire


def decode_update(wire: federation.Update, *, n_variables: int, dense: bool = False) -> LocalUpdate:
    """A site's answer.

    Raises
    ------
    MalformedMessageError
        For round 0, a matrix that is malformed or in the wrong representation, residual variances that are not d
        finite numbers of at least 0 (or none), moments that are not finite, too many or in both precisions, or a task
        named by another number of bytes than 8, or findings that are unknown, too many or about no variable.
    """
    if wire.round < 1:
        raise MalformedMessageError("update for round 0; rounds count from 1")
    variance = np.array(wire.residual_variance, dtype=np.float64)
    if variance.size not in (0, n_variables):
        raise MalformedMessageError(f"{variance.size} residual variances; this run has {n_variables} variables")
    if not (np.isfinite(variance) & (variance >= 0)).all():
        raise MalformedMessageError("a residual variance that is not a finite number of at least 0")
    if wire.moment and wire.moment32:
        raise MalformedMessageError("moments in both precisions")
    moments = np.array(wire.moment32 or wire.moment, dtype=np.float64)
    if moments.size > n_variables * (n_variables + 1) // 2 or not np.isfinite(moments).all():
        raise MalformedMessageError(f"{moments.size} moments: more than there are pairs, or one that is not finite")
    if dense and not variance.size and not moments.size:
        _expect_form(wire.WhichOneof("weights"), "dense_local_weights")
        weights = decode_dense(wire.dense_local_weights, n_variables=n_variables)
    else:
        _expect_form(wire.WhichOneof("weights"), "local_weights")
        weights = decode_matrix(wire.local_weights, n_variables=n_variables)
    ledger = _decode_ledger(wire.ledger) if wire.HasField("ledger") else None
    if len(wire.asked) not in (0, 8):
        raise MalformedMessageError(f"an answer to a task named by {len(wire.asked)} bytes; expected 8 or none")
    findings = _decode_findings(wire.finding, n_variables)
    return LocalUpdate(wire.site, wire.round, weights, variance, moments, ledger, wire.asked, findings)


def _decode_findings(wire: Sequence[federation.TableFinding], n_variables: int) -> tuple[TableFinding, ...]:
    if len(wire) > len(FindingCode) * n_variables:
        raise MalformedMessageError(f"{len(wire)} findings about a table of {n_variables} variables")
    findings: list[TableFinding] = []
    for found in wire:
        variables = tuple(found.variable)
        if found.code not in {code.value for code in FindingCode}:
            raise MalformedMessageError(f"a finding of unknown code {found.code}")
        if not variables or variables[-1] >= n_variables or any(b <= a for a, b in pairwise(variables)):
            raise MalformedMessageError("a finding about no variable, or one whose variables do not ascend")
        findings.append(TableFinding(FindingCode(found.code), variables))
    return tuple(findings)


def update_to_bytes(update: LocalUpdate, *, run: int, value_type: str, dense: bool = False) -> bytes:
    """A site's answer as it is sent."""
    return encode_update(update, run=run, value_type=value_type, dense=dense).SerializeToString()


def update_from_bytes(data: bytes, *, n_variables: int, dense: bool = False) -> LocalUpdate:
    """The answer that `update_to_bytes` wrote."""
    return decode_update(federation.Update.FromString(data), n_variables=n_variables, dense=dense)


def task_bytes(task: RoundTask, *, value_type: str, dense: bool = False) -> int:
    """Serialised bytes of the message that brings a task to a site."""
    return federation.PullReply(task=encode_task(task, value_type=value_type, dense=dense)).ByteSize()


def update_bytes(update: LocalUpdate, *, run: int, value_type: str, dense: bool = False) -> int:
    """Serialised bytes of the message that brings an update to the coordinator."""
    return encode_update(update, run=run, value_type=value_type, dense=dense).ByteSize()


def finished_bytes(finished: Finished, *, value_type: str) -> int:
    """Serialised bytes of the message that tells a site the end of the run."""
    return federation.PullReply(finished=encode_finished(finished, value_type=value_type)).ByteSize()


def encode_status(status: RunStatus) -> federation.StatusReply:
    """Wire form of where a run stands."""
    return federation.StatusReply(
        state=status.state,
        round=status.round,
        rounds=status.rounds,
        acyclicity=status.acyclicity,
        edges=status.edges,
        elapsed_s=status.elapsed_s,
        member=[
            federation.SiteStatus(
                site=site.site,
                answered=site.answered,
                left=site.left,
                last_seen_s=site.last_seen_s,
                bytes_up=site.bytes_up,
                bytes_down=site.bytes_down,
                online_s=site.online_s,
                last_round=site.last_round,
                spent_units=site.spent_units or 0,
                has_ledger=site.spent_units is not None,
            )
            for site in status.sites
        ],
        run=status.run,
        protocol_version=status.protocol_version,
        version=status.version,
        time_unix_s=status.time_unix_s,
        site=status.site,
    )


def decode_status(wire: federation.StatusReply) -> RunStatus:
    """Where a run stands.

    Raises
    ------
    MalformedMessageError
        For an unknown state, an impossible site name or version, a number that is not finite, or one below 0.
    """
    if wire.state not in RUN_STATES:
        raise MalformedMessageError(f"a run in the state {wire.state[:40]!r}; known are: {', '.join(RUN_STATES)}")
    if len(wire.version) > MAX_NAME_LENGTH or not wire.version.isprintable():
        raise MalformedMessageError("a version that cannot be printed")
    if wire.site and not is_site_name(wire.site):
        raise MalformedMessageError("a status for an impossible site name")
    if not math.isfinite(wire.acyclicity):
        raise MalformedMessageError("an acyclicity that is not a finite number")
    _check_amounts(wire.elapsed_s, wire.time_unix_s)
    return RunStatus(
        state=wire.state,
        round=wire.round,
        rounds=wire.rounds,
        acyclicity=wire.acyclicity,
        edges=wire.edges,
        elapsed_s=wire.elapsed_s,
        sites=tuple(_decode_site(site) for site in wire.member),
        run=wire.run,
        protocol_version=wire.protocol_version,
        version=wire.version,
        time_unix_s=wire.time_unix_s,
        site=wire.site,
    )


def _decode_site(wire: federation.SiteStatus) -> SiteProgress:
    if not is_site_name(wire.site):
        raise MalformedMessageError("the status of an impossible site name")
    _check_amounts(wire.last_seen_s, wire.online_s)
    if wire.spent_units and not wire.has_ledger:
        raise MalformedMessageError("a site that spends without a ledger")
    return SiteProgress(
        site=wire.site,
        answered=wire.answered,
        left=wire.left,
        last_seen_s=wire.last_seen_s,
        bytes_up=wire.bytes_up,
        bytes_down=wire.bytes_down,
        online_s=wire.online_s,
        last_round=wire.last_round,
        spent_units=wire.spent_units if wire.has_ledger else None,
    )


def _check_amounts(*numbers: float) -> None:
    for number in numbers:
        if not (math.isfinite(number) and number >= 0):
            raise MalformedMessageError(f"{number} s; expected a finite number of at least 0")

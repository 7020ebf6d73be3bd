"""Messages to protobuf and back. Whatever decodes here is valid: everything else raises MalformedMessageError."""

from collections.abc import Iterable

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.messages import (
    Finished,
    JoinReply,
    JoinRequest,
    LocalUpdate,
    RoundTask,
    RunStatus,
    SiteProgress,
    SiteState,
    TaskKind,
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


def encode_join(request: JoinRequest) -> federation.JoinRequest:
    """Wire form of a site's application."""
    return federation.JoinRequest(
        protocol_version=request.protocol_version,
        site=request.site,
        variable=request.variables,
        n_samples=request.n_samples,
    )


def decode_join(wire: federation.JoinRequest) -> JoinRequest:
    """A site's application.

    Raises
    ------
    MalformedMessageError
        If names are missing, repeated, too long or too many.
    """
    variables = _decode_variables(wire.variable)
    _check_name(wire.site)
    if wire.n_samples < 1:
        raise MalformedMessageError("a table without rows")
    return JoinRequest(wire.site, variables, wire.n_samples, wire.protocol_version)


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


def encode_join_reply(reply: JoinReply) -> federation.JoinReply:
    """Wire form of the coordinator's answer; the snapshot always in full precision, it restores a state bit by bit."""
    return federation.JoinReply(
        run=reply.run,
        plan=reply.plan_toml,
        plan_digest=reply.plan_digest,
        variable=reply.variables,
        local_weights=encode_matrix(reply.snapshot.local_weights, value_type="float64"),
        consensus_dual=encode_matrix(reply.snapshot.consensus_dual, value_type="float64"),
        round=reply.round,
    )


def decode_join_reply(wire: federation.JoinReply) -> JoinReply:
    """The coordinator's answer to an application.

    Raises
    ------
    MalformedMessageError
        If names are missing, repeated, too long or too many, or a matrix is malformed.
    """
    variables = _decode_variables(wire.variable)
    d = len(variables)
    return JoinReply(
        run=wire.run,
        plan_toml=wire.plan,
        plan_digest=wire.plan_digest,
        variables=variables,
        snapshot=SiteState(
            decode_matrix(wire.local_weights, n_variables=d), decode_matrix(wire.consensus_dual, n_variables=d)
        ),
        round=wire.round,
    )


def encode_task(task: RoundTask, *, value_type: str) -> federation.Task:
    """Wire form of a round's task."""
    return federation.Task(
        round=task.round,
        kind=federation.TaskKind.ValueType(task.kind.value),
        global_weights=encode_matrix(task.global_weights, value_type=value_type),
        contributed=task.contributed,
    )


def decode_task(wire: federation.Task, *, n_variables: int) -> RoundTask:
    """A round's task.

    Raises
    ------
    MalformedMessageError
        For an unknown kind, round 0 or a malformed matrix.
    """
    if wire.kind not in (federation.TASK_KIND_ADMM, federation.TASK_KIND_REFIT):
        raise MalformedMessageError(f"task of unknown kind {wire.kind}")
    if wire.round < 1:
        raise MalformedMessageError("task for round 0; rounds count from 1")
    weights = decode_matrix(wire.global_weights, n_variables=n_variables)
    return RoundTask(wire.round, TaskKind(wire.kind), weights, wire.contributed)


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


def encode_update(update: LocalUpdate, *, run: int, value_type: str) -> federation.Update:
    """Wire form of a site's answer."""
    return federation.Update(
        run=run_tag(run),
        site=update.site,
        round=update.round,
        local_weights=encode_matrix(update.local_weights, value_type=value_type),
        residual_variance=update.residual_variance.tolist(),
    )


def decode_update(wire: federation.Update, *, n_variables: int) -> LocalUpdate:
    """A site's answer.

    Raises
    ------
    MalformedMessageError
        For round 0, a malformed matrix, or residual variances that are not d finite numbers of at least 0 (or none).
    """
    if wire.round < 1:
        raise MalformedMessageError("update for round 0; rounds count from 1")
    variance = np.array(wire.residual_variance, dtype=np.float64)
    if variance.size not in (0, n_variables):
        raise MalformedMessageError(f"{variance.size} residual variances; this run has {n_variables} variables")
    if not (np.isfinite(variance) & (variance >= 0)).all():
        raise MalformedMessageError("a residual variance that is not a finite number of at least 0")
    return LocalUpdate(wire.site, wire.round, decode_matrix(wire.local_weights, n_variables=n_variables), variance)


def task_bytes(task: RoundTask, *, value_type: str) -> int:
    """Serialised bytes of the message that brings a task to a site."""
    return federation.PullReply(task=encode_task(task, value_type=value_type)).ByteSize()


def update_bytes(update: LocalUpdate, *, run: int, value_type: str) -> int:
    """Serialised bytes of the message that brings an update to the coordinator."""
    return encode_update(update, run=run, value_type=value_type).ByteSize()


def encode_status(status: RunStatus) -> federation.StatusReply:
    """Wire form of where a run stands."""
    return federation.StatusReply(
        state=status.state,
        round=status.round,
        rounds=status.rounds,
        acyclicity=status.acyclicity,
        edges=status.edges,
        elapsed_s=status.elapsed_s,
        site=[
            federation.SiteStatus(
                site=site.site,
                answered=site.answered,
                left=site.left,
                last_seen_s=site.last_seen_s,
                bytes_up=site.bytes_up,
                bytes_down=site.bytes_down,
            )
            for site in status.sites
        ],
    )


def decode_status(wire: federation.StatusReply) -> RunStatus:
    """Where a run stands."""
    sites = tuple(
        SiteProgress(site.site, site.answered, site.left, site.last_seen_s, site.bytes_up, site.bytes_down)
        for site in wire.site
    )
    return RunStatus(wire.state, wire.round, wire.rounds, wire.acyclicity, wire.edges, wire.elapsed_s, sites)

"""Arbitrary bytes are refused, or decode to something valid."""

import math
import platform
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from content_numbers import numbers_in
from fedbnsl.errors import MalformedMessageError
from fedbnsl.graphs.graph import topological_order
from fedbnsl.graphs.pag import ARROW, CIRCLE, TAIL
from fedbnsl.protocol import codec, matrix_codec
from fedbnsl.protocol.messages import (
    RUN_STATES,
    Content,
    EdgeDraws,
    FindingCode,
    Finished,
    JoinReply,
    JoinRequest,
    LinkMarks,
    LocalUpdate,
    Phase,
    RoundTask,
    RunStatus,
    SiteProgress,
    SiteState,
    TableFinding,
    is_site_name,
)
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.protocol.versions import own_versions
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.rounds import refit as refit_rounds
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import values_pb2 as values


def check_full(matrix: SparseMatrix, d: int) -> None:
    assert matrix.n_variables == d
    assert matrix.index.tolist() == list(range(d * d))
    assert len(matrix.value) == d * d
    assert all(math.isfinite(v) for v in matrix.value)


def check_matrix(matrix: SparseMatrix, d: int) -> None:
    index = matrix.index.tolist()
    assert matrix.n_variables == d
    assert len(index) == len(matrix.value)
    assert all(0 <= k < d * d and k // d != k % d for k in index)
    assert all(before < after for before, after in pairwise(index))
    assert all(math.isfinite(v) for v in matrix.value)


def check_task(data: bytes, *, dense: bool = False) -> None:
    task = codec.decode_task(federation.Task.FromString(data), n_variables=3, dense=dense)
    assert task.round >= 1
    check_content(task.content, dense=dense)


def check_update(data: bytes, *, dense: bool = False) -> None:
    update = codec.decode_update(federation.Update.FromString(data), n_variables=3, dense=dense)
    assert update.round >= 1
    for found in update.findings:
        assert isinstance(found.code, FindingCode)
        assert list(found.variables) == sorted({*found.variables} & {0, 1, 2}) != []
    check_content(update.content, dense=dense)


def check_content(content: Content, *, dense: bool) -> None:
    check = check_full if dense and content.kind == "admm" else check_matrix
    for part in vars(content).values():
        if isinstance(part, SparseMatrix):
            check(part, 3)
    for numbers in numbers_in(vars(content)):
        assert np.isfinite(numbers).all()


def check_application(data: bytes) -> None:
    request = codec.decode_join(federation.JoinRequest.FromString(data))
    assert len(set(request.variables)) == len(request.variables) >= 2
    assert all(name.strip() and len(name) <= 1000 for name in (request.site, *request.variables))


def check_reply(data: bytes) -> None:
    reply = codec.decode_join_reply(federation.JoinReply.FromString(data))
    assert len(set(reply.variables)) == len(reply.variables) >= 2
    d = len(reply.variables)
    check = check_full if reply.snapshot.local_weights.nnz == d * d else check_matrix
    check(reply.snapshot.local_weights, d)
    check(reply.snapshot.consensus_dual, d)


@pytest.mark.parametrize("edges", [[1, 3], [1, 5, 6], [1, 2, 5, 7]])
def test_a_graph_with_a_cycle_is_no_end_of_a_run(edges: list[int]) -> None:
    for kept in range(1, len(edges)):
        acyclic = SparseMatrix(3, np.array(edges[:kept]), np.ones(kept))
        assert codec.decode_finished(
            codec.encode_finished(Finished(acyclic), value_type="float64"), n_variables=3
        ) == Finished(acyclic)
        cut = Finished(acyclic, search_ended_early=True)
        assert codec.decode_finished(codec.encode_finished(cut, value_type="float64"), n_variables=3) == cut
    wire = codec.encode_finished(Finished(SparseMatrix(3, np.array(edges), np.zeros(len(edges)))), value_type="float64")
    with pytest.raises(MalformedMessageError, match="has a cycle"):
        codec.decode_finished(wire, n_variables=3)


def test_what_the_draws_have_on_the_edges_and_which_are_undecided_survive_the_wire() -> None:
    graph = SparseMatrix(3, np.array([1, 5]), np.ones(2))
    end = Finished(graph, draws=EdgeDraws(100, ((100, 60, 40), (7, 0, 0))), undecided=(0, 1))
    assert codec.decode_finished(codec.encode_finished(end, value_type="float64"), n_variables=3) == end


@pytest.mark.parametrize(
    "marks",
    [
        LinkMarks(()),
        LinkMarks(((0, 1, TAIL, ARROW), (1, 2, CIRCLE, ARROW))),
        LinkMarks(((0, 2, ARROW, ARROW),), 10, ((0, 10),)),
    ],
)
def test_who_directed_edges_and_marks_survive_the_wire(marks: LinkMarks) -> None:
    end = Finished(SparseMatrix(3, np.array([1, 5]), np.ones(2)), directed_by=("noise", "nobody"), marks=marks)
    assert codec.decode_finished(codec.encode_finished(end, value_type="float64"), n_variables=3) == end


@pytest.mark.parametrize(
    ("link", "draws", "count"),
    [
        ([0, 1, 2], 0, []),
        ([1, 0, 2, 2], 0, []),
        ([0, 3, 2, 2], 0, []),
        ([0, 1, 0, 2], 0, []),
        ([0, 1, 2, 4], 0, []),
        ([0, 2, 2, 2, 0, 1, 2, 2], 0, []),
        ([0, 1, 2, 2, 0, 1, 2, 2], 0, []),
        ([0, 1, 2, 2], 10, [11, 0]),
        ([0, 1, 2, 2], 10, [5]),
        ([0, 1, 2, 2], 0, [5, 5]),
    ],
)
def test_impossible_marks_are_refused(link: list[int], draws: int, count: list[int]) -> None:
    wire = federation.Finished(marks=federation.LinkMarks(link=link, draws=draws, count=count))
    with pytest.raises(MalformedMessageError, match=f"{len(link)} numbers of links and {len(count)} counts"):
        codec.decode_finished(wire, n_variables=3)


def test_edges_directed_by_something_unknown_are_refused() -> None:
    with pytest.raises(MalformedMessageError, match="edges directed by 'fate'"):
        codec.decode_finished(federation.Finished(directed_by=["data", "fate"]), n_variables=3)


@pytest.mark.parametrize(
    ("draws", "counts"),
    [(0, []), (10, [5, 5]), (10, [11, 0, 0]), (10, [5, 3, 3])],
    ids=["no draw", "not three an edge", "more than there are", "more directions than edges"],
)
def test_impossible_counts_of_draws_are_refused(draws: int, counts: list[int]) -> None:
    wire = federation.Finished(draws=federation.EdgeDraws(draws=draws, counts=counts))
    with pytest.raises(MalformedMessageError, match=f"{len(counts)} counts of {draws} draws at the end of the run"):
        codec.decode_finished(wire, n_variables=3)


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"phase": Phase("bootstrap", 0.25, 4.0, 12.0, "iteration 3")},
        {"phase": Phase("bootstrap", 0.0, 0.0)},
        {"phase": Phase("loading compiled code", None, 3.0)},
        {"undirected": 3},
    ],
)
def test_a_status_survives_the_wire_and_what_nobody_knows_stays_unknown(told):
    status = RunStatus("running", 1, 2, 0.0, 17, 0.0, (), **told)
    assert codec.decode_status(codec.encode_status(status)) == status


@pytest.mark.parametrize(
    "wire",
    [
        federation.Phase(what="x" * 1001),
        federation.Phase(what="a\nb"),
        federation.Phase(what="a", detail="b\x1b"),
        federation.Phase(what="a", share=1.5),
        federation.Phase(what="a", share=math.nan),
        federation.Phase(what="a", elapsed_s=-1.0),
        federation.Phase(what="a", left_s=math.inf),
    ],
)
def test_a_phase_that_cannot_be_is_refused(wire):
    with pytest.raises(MalformedMessageError):
        codec.decode_phase(wire)


def test_the_version_of_a_coordinator_is_cut_to_a_length_that_can_be_read() -> None:
    wire = codec.encode_status(RunStatus("running", 1, 2, 0.0, 0, 0.0, (), version="9" * 900))
    assert codec.decode_status(wire).version == "9" * 63 + "…"


def check_end(data: bytes) -> None:
    end = codec.decode_finished(federation.Finished.FromString(data), n_variables=3)
    if end.graph is not None:
        check_matrix(end.graph, 3)
        topological_order(end.graph.support())  # raises for a cycle


def check_status(data: bytes) -> None:
    status = codec.decode_status(federation.StatusReply.FromString(data))
    assert status.state in RUN_STATES
    assert status.version.isprintable()
    assert status.reason.isprintable()
    assert len(status.reason) <= 1000
    seconds = [
        status.elapsed_s,
        status.time_unix_s,
        *(s for site in status.sites for s in (site.last_seen_s, site.online_s)),
    ]
    assert all(math.isfinite(s) and s >= 0 for s in seconds)
    assert all(is_site_name(site.site) for site in status.sites)


def _valid_messages() -> dict[str, tuple[Callable[[bytes], None], Message]]:
    matrix = SparseMatrix(3, np.array([1, 3, 7]), np.array([1.0, -2.5, 1e-9]))
    names = ("x", "y", "z")
    findings = (
        TableFinding(FindingCode.MEANS_FAR_FROM_ZERO, (0, 2)),
        TableFinding(FindingCode.LOOKS_CATEGORICAL, (1,)),
    )
    content = refit_rounds.Answer(matrix, np.array([1.0, 0.0, 2.0]))
    update = LocalUpdate("site-1", 2, content, findings=findings)
    progress = RunStatus("running", 3, 10, 0.1, 17, 1.0, (SiteProgress("a", True, False, 0.25, 10, 20),), undirected=4)
    task, reply = (
        RoundTask(2, admm_rounds.Task(matrix), True),
        JoinReply(1, "rounds = 1", b"12", names, SiteState(matrix, matrix), 4),
    )
    dense = LocalUpdate("site-1", 2, admm_rounds.Answer(matrix))
    end = Finished(SparseMatrix(3, np.array([1, 2, 7]), matrix.value), "why", draws=EdgeDraws(9, ((9, 5, 4),)))
    return {
        "task": (check_task, codec.encode_task(task, value_type="float64")),
        "update": (check_update, codec.encode_update(update, run=77, value_type="float32")),
        "application": (
            check_application,
            codec.encode_join(JoinRequest("site-1", names, 100, versions={"fedbnsl": "0.1.0"})),
        ),
        "reply": (check_reply, codec.encode_join_reply(reply)),
        "dense task": (partial(check_task, dense=True), codec.encode_task(task, value_type="float32", dense=True)),
        "dense update": (
            partial(check_update, dense=True),
            codec.encode_update(dense, run=77, value_type="float64", dense=True),
        ),
        "dense reply": (check_reply, codec.encode_join_reply(reply, dense=True)),
        "end": (check_end, codec.encode_finished(end, value_type="float64")),
        "status": (check_status, codec.encode_status(progress)),
    }


@pytest.mark.parametrize(("code", "variables"), [(1, []), (1, [3]), (1, [1, 1]), (2, [2, 0]), (0, [0]), (99, [0])])
def test_findings_are_of_known_codes_and_about_variables_of_the_run(code: int, variables: list[int]) -> None:
    wire = codec.encode_update(
        LocalUpdate("a", 1, admm_rounds.Answer(SparseMatrix.zeros(3))), run=1, value_type="float64"
    )
    wire.finding.add(code=federation.FindingCode.ValueType(code), variable=variables)
    with pytest.raises(MalformedMessageError, match="finding"):
        codec.decode_update(wire, n_variables=3)


def test_findings_come_through_and_are_not_more_than_there_can_be() -> None:
    counts = {FindingCode.ROWS_OF_GROUPS: 40}
    found = tuple(TableFinding(code, (k,), counts.get(code, 0)) for code in FindingCode for k in range(3))
    update = LocalUpdate("a", 1, admm_rounds.Answer(SparseMatrix.zeros(3)), findings=found)
    wire = codec.encode_update(update, run=1, value_type="float64")
    assert codec.decode_update(wire, n_variables=3) == update
    assert codec.decode_update(wire, n_variables=3) != (LocalUpdate("a", 1, admm_rounds.Answer(SparseMatrix.zeros(3))))
    wire.finding.add(code=federation.FINDING_CODE_LOOKS_CATEGORICAL, variable=[0])
    with pytest.raises(MalformedMessageError, match=f"{len(found) + 1} findings"):
        codec.decode_update(wire, n_variables=3)


@pytest.mark.parametrize(("code", "count"), [(1, 40), (4, 0)])
def test_a_finding_counts_groups_if_it_is_about_groups(code: int, count: int) -> None:
    update = LocalUpdate("a", 1, admm_rounds.Answer(SparseMatrix.zeros(3)))
    wire = codec.encode_update(update, run=1, value_type="float64")
    wire.finding.add(code=federation.FindingCode.ValueType(code), variable=[0], count=count)
    with pytest.raises(MalformedMessageError, match="groups"):
        codec.decode_update(wire, n_variables=3)


VALID = {name: (check, message.SerializeToString()) for name, (check, message) in _valid_messages().items()}
every_message = pytest.mark.parametrize(("check", "valid"), VALID.values(), ids=VALID)


def survive(check: Callable[[bytes], None], data: bytes) -> None:
    """Bytes are no protobuf, or no valid message, or decode to something valid; any other exception is a failure."""
    try:
        check(data)
    except (DecodeError, MalformedMessageError):
        return


@every_message
def test_a_valid_message_passes_its_own_check(check: Callable[[bytes], None], valid: bytes) -> None:
    check(valid)


@every_message
@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_never_decode_to_something_invalid(
    check: Callable[[bytes], None], valid: bytes, data: bytes
) -> None:
    survive(check, data)


@every_message
@settings(max_examples=250, deadline=None)
@given(data=st.data())
@pytest.mark.long
def test_a_damaged_message_never_decodes_to_something_invalid(
    check: Callable[[bytes], None], valid: bytes, data: st.DataObject
) -> None:
    message = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(message)))
        with_bytes = data.draw(st.binary(max_size=3))
        message[position : position + data.draw(st.integers(0, 3))] = with_bytes
    survive(check, bytes(message))


GAPS = st.lists(st.integers(0, 10) | st.integers(0, 2**32 - 1), max_size=8)
FLOATS = st.lists(st.floats(), max_size=8)


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 4), GAPS, FLOATS, st.lists(st.floats(width=32), max_size=3))
def test_arbitrary_fields_never_decode_to_an_invalid_matrix(
    n_variables: int, gaps: list[int], value: list[float], value32: list[float]
) -> None:
    wire = values.SparseMatrix(n_variables=n_variables, index_gap=gaps, value=value, value32=value32)

    def check(data: bytes) -> None:
        check_matrix(matrix_codec.decode_matrix(values.SparseMatrix.FromString(data), n_variables=3), 3)

    survive(check, wire.SerializeToString())


@pytest.mark.parametrize(
    "versions",
    [
        {"fedbnsl": ""},
        {"": "1.0"},
        {"fedbnsl": "1" * 41},
        {"x" * 41: "1"},
        {"machine": "/home/alice"},
        {"python": "3.11\n"},
        {"python": "\u202e11.3"},
        {"python": "3.11<script>"},
        {f"package-{k}": "1" for k in range(17)},
    ],
)
def test_versions_are_few_short_and_plain(versions: dict[str, str]) -> None:
    names = ("x", "y", "z")
    with pytest.raises(MalformedMessageError, match="version"):
        codec.decode_join(codec.encode_join(JoinRequest("site-1", names, 100, versions=versions)))


def test_what_a_site_tells_of_itself_passes_the_door_and_names_no_machine() -> None:
    request = JoinRequest("site-1", ("x", "y", "z"), 100, versions=own_versions())
    assert codec.decode_join(codec.encode_join(request)) == request
    assert {"fedbnsl", "python", "numpy", "scipy", "blas", "architecture"} <= set(request.versions)
    told = " ".join(request.versions.values())
    assert platform.node() not in told
    assert "/" not in told


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=30), st.integers(0, 8), st.integers(-70, 3))
def test_arbitrary_packed_bytes_never_decode_to_an_invalid_matrix(data: bytes, n: int, exponent: int) -> None:
    wire = values.SparseMatrix(n_variables=3, packed=data, n_packed=n, exponent=exponent)

    def check(sent: bytes) -> None:
        check_matrix(matrix_codec.decode_matrix(values.SparseMatrix.FromString(sent), n_variables=3), 3)

    survive(check, wire.SerializeToString())

"""Messages survive the wire bit for bit, stay as small as promised, and nothing invalid gets through."""

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedbnsl.errors import MalformedMessageError
from fedbnsl.graphs.graph import topological_order
from fedbnsl.protocol import codec, matrix_codec, rice
from fedbnsl.protocol.messages import (
    RUN_STATES,
    Content,
    EdgeDraws,
    FindingCode,
    Finished,
    JoinReply,
    JoinRequest,
    LocalUpdate,
    Loss,
    MaskedSum,
    Membership,
    Phase,
    RoundTask,
    RunStatus,
    SiteProgress,
    SiteState,
    TableFinding,
    Units,
    is_site_name,
)
from fedbnsl.protocol.sparse import Index, Matrix, SparseMatrix, formula_bytes
from fedbnsl.protocol.versions import own_versions
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.rounds import keys as keys_rounds
from fedbnsl.rounds import moments as moments_rounds
from fedbnsl.rounds import refit as refit_rounds
from fedbnsl.rounds import residual_moments as residual_rounds
from fedbnsl.rounds import scales as scales_rounds
from fedbnsl.rounds import statistics as statistics_rounds
from fedbnsl.rounds.kinds import KINDS
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import values_pb2 as values

M = TypeVar("M", bound=Message)
QUICK = settings(max_examples=80, deadline=None)
ANY_FINITE = st.floats(allow_nan=False, allow_infinity=False)  # signed zeros and subnormals among them
ANY_FINITE_FLOAT32 = st.floats(allow_nan=False, allow_infinity=False, width=32)


def off_diagonal(d: int) -> list[int]:
    return [i * d + j for i in range(d) for j in range(d) if i != j]


@st.composite
def matrices(draw: st.DrawFn, *, value_type: str = "float64", max_variables: int = 400) -> SparseMatrix:
    """Any support: a few drawn indices, or a whole band of rows; any finite values that the type can hold."""
    d = draw(st.integers(2, max_variables))
    index = draw(st.sets(st.integers(0, d * d - 1), max_size=40))
    index |= draw(st.sampled_from([set(), {1}, {d * d - 2}, set(range(d * min(d, 3)))]))
    kept = sorted(k for k in index if k // d != k % d)
    drawn = draw(st.lists(ANY_FINITE_FLOAT32 if value_type == "float32" else ANY_FINITE, min_size=1, max_size=40))
    value = np.array([drawn[k % len(drawn)] for k in range(len(kept))], dtype=np.float64)
    return SparseMatrix(d, np.array(kept, dtype=np.int64), value)


@st.composite
def full_matrices(draw: st.DrawFn, *, value_type: str = "float64", max_variables: int = 30) -> SparseMatrix:
    """All d^2 entries, zeros and the diagonal among them, as a dense message brings them."""
    d = draw(st.integers(2, max_variables))
    drawn = draw(st.lists(ANY_FINITE_FLOAT32 if value_type == "float32" else ANY_FINITE, min_size=1, max_size=40))
    value = np.array([drawn[k % len(drawn)] for k in range(d * d)], dtype=np.float64)
    return SparseMatrix(d, np.arange(d * d), value)


def parsed(kind: type[M], message: Message) -> M:
    """The message as the other side's protobuf sees it."""
    return kind.FromString(message.SerializeToString())


def assert_same_bits(one: SparseMatrix, other: SparseMatrix) -> None:
    assert one.n_variables == other.n_variables
    assert one.index.tolist() == other.index.tolist()
    assert [float(v).hex() for v in one.value] == [float(v).hex() for v in other.value]  # hex tells -0.0 from 0.0
    assert other.index.dtype == np.int64
    assert other.value.dtype == np.float64


# ---- round trips ---------------------------------------------------------------------------------------------------


FORMS = {
    "sparse": (matrices, values.SparseMatrix, matrix_codec.encode_matrix, matrix_codec.decode_matrix),
    "dense": (full_matrices, values.DenseMatrix, matrix_codec.encode_dense, matrix_codec.decode_dense),
}


@pytest.mark.parametrize("value_type", ["float64", "float32"])
@pytest.mark.parametrize("form", FORMS)
@QUICK
@given(data=st.data())
def test_a_matrix_survives_the_wire_bit_for_bit(form: str, value_type: str, data: st.DataObject) -> None:
    drawn, kind, encode, decode = FORMS[form]
    matrix = data.draw(drawn(value_type=value_type))
    wire = parsed(kind, encode(matrix, value_type=value_type))
    assert_same_bits(matrix, decode(wire, n_variables=matrix.n_variables))
    assert not (wire.value32 if value_type == "float64" else wire.value)


@QUICK
@given(matrices(max_variables=12))
def test_a_matrix_rounded_to_float32_crosses_a_float32_wire_unchanged(matrix: SparseMatrix) -> None:
    small = SparseMatrix(matrix.n_variables, matrix.index, np.clip(matrix.value, -3e38, 3e38)).as_float32()
    wire = parsed(values.SparseMatrix, matrix_codec.encode_matrix(small, value_type="float32"))
    assert_same_bits(small, matrix_codec.decode_matrix(wire, n_variables=small.n_variables))


@QUICK
@given(matrices(), st.integers(-32, 0), st.lists(st.integers(1 - 2**31, 2**31 - 1), min_size=1, max_size=40))
def test_a_matrix_of_multiples_of_a_power_of_two_survives_in_either_precision(
    matrix: SparseMatrix, exponent: int, multiples: list[int]
) -> None:
    value = np.array([math.ldexp(multiples[k % len(multiples)], exponent) for k in range(matrix.nnz)], dtype=float)
    rounded = replace(matrix, value=value)
    wire = parsed(values.SparseMatrix, matrix_codec.encode_matrix(rounded, value_type="float64"))
    assert_same_bits(rounded, matrix_codec.decode_matrix(wire, n_variables=matrix.n_variables))
    small = parsed(values.SparseMatrix, matrix_codec.encode_matrix(rounded.as_float32(), value_type="float32"))
    assert_same_bits(rounded.as_float32(), matrix_codec.decode_matrix(small, n_variables=matrix.n_variables))


def test_rounded_weights_of_a_round_take_less_than_half_of_float32() -> None:
    d, rng = 200, np.random.default_rng(1)
    index = np.sort(rng.choice(off_diagonal(d), size=1000, replace=False))
    exact = SparseMatrix(d, index, rng.laplace(scale=0.2, size=index.size)).as_float32()
    rounded = exact.rounded_to(2.0**-9)
    assert np.abs(rounded.value - exact.value).max() <= 2.0**-10
    before, now = (matrix_codec.encode_matrix(one, value_type="float32") for one in (exact, rounded))
    assert before.value32
    assert now.packed
    assert now.ByteSize() < 0.45 * before.ByteSize()


def packed(**changed: Any) -> values.SparseMatrix:
    """Entries (0, 1) and (0, 2) of three variables: 0.5 and -1."""
    matrix = SparseMatrix(3, np.array([1, 2]), np.array([0.5, -1.0]))
    wire = matrix_codec.encode_matrix(matrix, value_type="float64")
    assert wire.packed
    for name, value in changed.items():
        wire.ClearField(name)
        setattr(wire, name, value) if not isinstance(value, list) else getattr(wire, name).extend(value)
    return wire


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"n_packed": 0}, "first byte|after the last entry"),
        ({"n_packed": 1}, "not filled with zeros|after the last entry"),
        ({"n_packed": 3}, "first byte|end before|after the last"),
        ({"n_packed": 7}, "with 7 entries"),
        ({"n_packed": 2**32 - 1}, "with 4294967295 entries"),
        ({"exponent": 1}, r"in units of 2\^1"),
        ({"exponent": -65}, r"in units of 2\^-65"),
        ({"exponent": -(2**31)}, "in units of"),
        ({"packed": b""}, "without their first byte"),
        ({"packed": packed().packed + b"x"}, "1 bytes after the last entry"),
        ({"packed": packed().packed[:-1]}, "without their first byte|end before"),
        ({"packed": rice.pack(np.array([0, 1], np.uint64)) + rice.pack(np.array([1, 1], np.uint64))}, "diagonal"),
        ({"packed": rice.pack(np.array([1, 7], np.uint64)) + rice.pack(np.array([1, 1], np.uint64))}, "with index 9"),
        ({"index_gap": [1]}, "two forms"),
        ({"value": [1.0]}, "two forms"),
        ({"value32": [1.0]}, "two forms"),
    ],
)
def test_a_malformed_packed_matrix_is_refused(changed: dict[str, Any], reason: str) -> None:
    assert matrix_codec.decode_matrix(packed(), n_variables=3).value.tolist() == [0.5, -1.0]
    with pytest.raises(MalformedMessageError, match=reason):
        matrix_codec.decode_matrix(packed(**changed), n_variables=3)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=30), st.integers(0, 8), st.integers(-70, 3))
def test_arbitrary_packed_bytes_never_decode_to_an_invalid_matrix(data: bytes, n: int, exponent: int) -> None:
    wire = values.SparseMatrix(n_variables=3, packed=data, n_packed=n, exponent=exponent)

    def check(sent: bytes) -> None:
        check_matrix(matrix_codec.decode_matrix(values.SparseMatrix.FromString(sent), n_variables=3), 3)

    survive(check, wire.SerializeToString())


@QUICK
@given(matrices(max_variables=30))
def test_what_a_sparse_matrix_leaves_out_is_zero_in_its_dense_message(matrix: SparseMatrix) -> None:
    d = matrix.n_variables
    wire = parsed(values.DenseMatrix, matrix_codec.encode_dense(matrix, value_type="float64"))
    stored = dict(zip(matrix.index.tolist(), matrix.value.tolist(), strict=True))
    assert [v.hex() for v in wire.value] == [stored.get(k, 0.0).hex() for k in range(d * d)]


def test_an_explicit_zero_stays_an_entry() -> None:
    matrix = SparseMatrix(3, np.array([1, 3, 7]), np.array([0.0, -0.0, 2.0]))
    wire = parsed(values.SparseMatrix, matrix_codec.encode_matrix(matrix, value_type="float64"))
    back = matrix_codec.decode_matrix(wire, n_variables=3)
    assert back.nnz == 3
    assert_same_bits(matrix, back)


MEMBERSHIPS = (
    Membership("east", 100, b"certificate", bytes(range(32)), b"signature"),
    Membership("west", 7, public_key=bytes(range(1, 33))),
)


def tasks_of(matrix: SparseMatrix) -> list[Content]:
    """One of every kind."""
    scales = np.linspace(0.1, 7.0, matrix.n_variables)
    return [
        admm_rounds.Task(matrix),
        refit_rounds.Task(matrix),
        moments_rounds.Task(replace(matrix, value=np.ones(matrix.nnz))),
        scales_rounds.Task(),
        statistics_rounds.Task(),
        residual_rounds.Task(matrix, scales),
        keys_rounds.Task(MEMBERSHIPS),
    ]


def answers_of(matrix: SparseMatrix, numbers: Matrix) -> list[Content]:
    """One of every kind, with numbers of at least 0."""
    return [
        admm_rounds.Answer(matrix),
        refit_rounds.Answer(matrix, numbers),
        moments_rounds.Answer(numbers),
        scales_rounds.Answer(numbers),
        statistics_rounds.Answer(numbers, np.abs(numbers), 12.5),
        residual_rounds.Answer(numbers, b"a digest"),
        keys_rounds.Answer(bytes(range(32)), b"signature", b"8 digits"),
    ]


def test_every_kind_of_round_is_tried() -> None:
    matrix = SparseMatrix.zeros(3)
    assert {content.kind for content in tasks_of(matrix)} == set(KINDS)
    assert {content.kind for content in answers_of(matrix, np.ones(3))} == set(KINDS)


@QUICK
@given(matrices(), st.integers(1, 2**32 - 1), st.booleans())
def test_a_task_survives_the_wire(matrix: SparseMatrix, round_: int, contributed: bool) -> None:
    for content in tasks_of(matrix):
        task = RoundTask(round_, content, contributed)
        wire = parsed(federation.Task, codec.encode_task(task, value_type="float64"))
        assert codec.decode_task(wire, n_variables=matrix.n_variables) == task


@QUICK
@given(matrices(max_variables=30), st.integers(1, 2**32 - 1), st.integers(0, 2**64 - 1), st.text(max_size=8), st.data())
def test_an_update_survives_the_wire(
    matrix: SparseMatrix, round_: int, run: int, site: str, data: st.DataObject
) -> None:
    d = matrix.n_variables
    numbers = data.draw(st.lists(st.floats(min_value=0.0, allow_infinity=False), min_size=d, max_size=d))
    for content in answers_of(matrix, np.array(numbers)):
        update = LocalUpdate(site, round_, content)
        wire = parsed(federation.Update, codec.encode_update(update, run=run, value_type="float64"))
        assert wire.run == run % 2**32  # its low half tells runs apart
        assert codec.decode_update(wire, n_variables=d) == update


@pytest.mark.parametrize("value_type", ["float64", "float32"])
def test_private_steps_survive_the_wire_with_the_weights_that_they_led_to(value_type: str) -> None:
    matrix = SparseMatrix(3, np.array([1]), np.array([0.5]))
    index, numbers = np.array([5, 1, 5]), np.array([1.0, 0.1, 2.0])
    answer = admm_rounds.Answer(matrix, index, -numbers, numbers, numbers - 1.0).as_sent(value_type)
    update = LocalUpdate("a", 3, answer)
    wire = parsed(federation.Update, codec.encode_update(update, run=1, value_type=value_type))
    assert codec.decode_update(wire, n_variables=3) == update
    other = replace(answer, gradient=answer.gradient + 1.0)
    assert codec.decode_update(wire, n_variables=3) != LocalUpdate("a", 3, other)


def steps_wire(**changed: Any) -> federation.Update:
    numbers = values.Numbers(value=[1.0])
    fields = {"index": [1], "gradient": numbers, "bound": numbers, "weight": numbers} | changed
    return federation.Update(
        round=1, site="a", admm_steps=federation.AdmmSteps(weights=values.SparseMatrix(n_variables=3), **fields)
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"index": []}, "expected at most 0"),
        ({"index": [1, 2]}, "2 private steps with 1 gradients"),
        ({"index": [4]}, "diagonal"),
        ({"index": [9]}, "off the matrix"),
        ({"gradient": values.Numbers()}, "0 gradients"),
        ({"gradient": values.Numbers(value=[math.nan])}, "not finite"),
        ({"bound": values.Numbers(value=[0.0])}, "bound is not above 0"),
        ({"weight": values.Numbers(value=[1.0, 2.0])}, "expected at most 1"),
        ({"weights": None}, "over 0 variables"),
    ],
)
def test_malformed_private_steps_are_refused(changed: dict[str, Any], reason: str) -> None:
    codec.decode_update(steps_wire(), n_variables=3)
    wire = steps_wire(**{key: value for key, value in changed.items() if key != "weights"})
    if "weights" in changed:
        wire.admm_steps.ClearField("weights")
    with pytest.raises(MalformedMessageError, match=reason):
        codec.decode_update(wire, n_variables=3)


@QUICK
@given(full_matrices(), st.sampled_from(["float64", "float32"]))
def test_in_a_dense_run_tasks_and_updates_are_dense_and_all_else_is_sparse(
    matrix: SparseMatrix, value_type: str
) -> None:
    d = matrix.n_variables
    full = SparseMatrix(d, matrix.index, np.clip(matrix.value, -3e38, 3e38)).as_float32()
    off = SparseMatrix.on_support(full.to_dense(), ~np.eye(d, dtype=bool))
    tasks = [admm_rounds.Task(full), *tasks_of(off)[1:]]
    answers = [admm_rounds.Answer(full), *answers_of(off, np.ones(d))[1:]]
    for asked, answered in zip(tasks, answers, strict=True):
        task, update = RoundTask(3, asked, contributed=True), LocalUpdate("a", 3, answered)
        down = parsed(federation.Task, codec.encode_task(task, value_type=value_type, dense=True))
        up = parsed(federation.Update, codec.encode_update(update, run=1, value_type=value_type, dense=True))
        field = "admm_dense" if asked.kind == "admm" else asked.kind
        assert down.WhichOneof("content") == up.WhichOneof("content") == field
        assert codec.decode_task(down, n_variables=d, dense=True) == task
        assert codec.decode_update(up, n_variables=d, dense=True) == update


# ---- size ----------------------------------------------------------------------------------------------------------

MATRIX_OVERHEAD_BYTES = 32
# Worst case of a whole update with a site name of 6 bytes: d = 256, about 130 entries that are all at least 128 apart,
# three of them at least 16384 apart, beyond round 16383. With fewer than 128 rounds 30.
UPDATE_OVERHEAD_BYTES = 32


def matrix_on(d: int, index: Sequence[int] | Index) -> SparseMatrix:
    return SparseMatrix(d, np.array(index, dtype=np.int64), np.full(len(index), -1.2345678))


def costly_supports(d: int) -> list[list[int]]:
    """Supports whose gaps need more bytes than the formula grants, as often as fits, then ones that need as many."""
    granted = math.ceil(math.log2(d * d) / 8)
    too_long, just_as_long = 128**granted, 128 ** (granted - 1)
    n_too_long = (d * d - 2) // too_long
    supports = []
    for n_more in (0, 16 - n_too_long, 64 - n_too_long, 127, 10**6):
        index: list[int] = []
        at = 0
        for gap in [too_long] * n_too_long + [just_as_long] * max(0, min(n_more, d * d // just_as_long)):
            at += gap
            at += at % (d + 1) == 0  # step over the diagonal
            if at < d * d - 1:
                index.append(at)
        supports.append(index)
    return supports


def assert_small(d: int, index: Sequence[int] | Index) -> None:
    matrix = matrix_on(d, index)
    formula = formula_bytes(len(index), d)
    for value_type in ("float64", "float32"):
        size = len(matrix_codec.encode_matrix(matrix, value_type=value_type).SerializeToString())
        assert size <= formula + MATRIX_OVERHEAD_BYTES
    update = codec.encode_update(
        LocalUpdate("site-6", 100_010, admm_rounds.Answer(matrix)), run=2**64 - 1, value_type="float64"
    )
    assert len(update.SerializeToString()) <= formula + UPDATE_OVERHEAD_BYTES


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 1000), st.floats(-7, -1), st.integers(0, 2**32 - 1))
@example(2, 0.0, 0)
@example(1000, 0.0, 0)
def test_a_message_is_hardly_larger_than_the_papers_formula(d: int, log_density: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(10**log_density * d * d)
    index = np.sort(rng.choice(d * d, size=n, replace=False, shuffle=False))
    assert_small(d, index[index // d != index % d])


@pytest.mark.long
def test_no_support_of_any_size_makes_a_message_larger_than_promised() -> None:
    for d in range(2, 1001):
        for index in ([], [1], [d * d - 2], *costly_supports(d)):
            assert_small(d, index)


def test_the_promised_size_of_an_update_is_the_worst_case_and_no_more() -> None:
    worst = 0
    for index in costly_supports(256):
        update = LocalUpdate("site-6", 100_010, admm_rounds.Answer(matrix_on(256, index)))
        size = codec.encode_update(update, run=2**64 - 1, value_type="float64").ByteSize()
        worst = max(worst, size - formula_bytes(len(index), 256))
    assert worst == UPDATE_OVERHEAD_BYTES


def test_message_sizes_are_those_of_the_serialised_messages() -> None:
    matrix = matrix_on(20, [1, 5, 399 - 1])
    task = RoundTask(7, admm_rounds.Task(matrix), contributed=True)
    pulled = federation.PullReply(task=codec.encode_task(task, value_type="float32"))
    assert codec.task_bytes(task, value_type="float32") == len(pulled.SerializeToString())
    update = LocalUpdate("a", 7, admm_rounds.Answer(matrix))
    pushed = codec.encode_update(update, run=5, value_type="float64")
    assert codec.update_bytes(update, run=5, value_type="float64") == len(pushed.SerializeToString())


@pytest.mark.parametrize(("value_type", "bytes_a_value"), [("float64", 8), ("float32", 4)])
def test_a_dense_message_is_its_values_and_hardly_more(value_type: str, bytes_a_value: int) -> None:
    for d in (2, 20, 300):
        matrix = SparseMatrix(d, np.arange(d * d), np.full(d * d, -1.2345678))
        update = codec.update_bytes(
            LocalUpdate("site-6", 100_010, admm_rounds.Answer(matrix)), run=1, value_type=value_type, dense=True
        )
        task = RoundTask(100_010, admm_rounds.Task(matrix), contributed=True)
        for size in (update, codec.task_bytes(task, value_type=value_type, dense=True)):
            assert 0 <= size - bytes_a_value * d * d <= 40


# ---- malformed messages --------------------------------------------------------------------------------------------

MALFORMED_MATRICES: list[tuple[str, values.SparseMatrix, str]] = [
    ("another number of variables", values.SparseMatrix(n_variables=4), "over 4 variables; this run has 3"),
    ("no number of variables", values.SparseMatrix(), "over 0 variables; this run has 3"),
    ("a first gap of 0", values.SparseMatrix(n_variables=3, index_gap=[0], value=[1.0]), "diagonal"),
    ("a later gap of 0", values.SparseMatrix(n_variables=3, index_gap=[1, 0], value=[1.0, 2.0]), "do not increase"),
    ("more indices", values.SparseMatrix(n_variables=3, index_gap=[1, 1], value=[1.0]), "2 indices and 1 values"),
    ("more values", values.SparseMatrix(n_variables=3, index_gap=[1], value=[1.0, 2.0]), "1 indices and 2 values"),
    ("values only", values.SparseMatrix(n_variables=3, value32=[1.0]), "0 indices and 1 values"),
    ("both precisions", values.SparseMatrix(n_variables=3, index_gap=[1], value=[1.0], value32=[1.0]), "both"),
    ("nan", values.SparseMatrix(n_variables=3, index_gap=[1], value=[math.nan]), "not finite"),
    ("inf", values.SparseMatrix(n_variables=3, index_gap=[1, 1], value=[1.0, math.inf]), "not finite"),
    ("-inf in float32", values.SparseMatrix(n_variables=3, index_gap=[1], value32=[-math.inf]), "not finite"),
    ("a diagonal entry", values.SparseMatrix(n_variables=3, index_gap=[1, 3], value=[1.0, 2.0]), "diagonal"),
    ("the last diagonal entry", values.SparseMatrix(n_variables=3, index_gap=[8], value=[1.0]), "diagonal"),
    (
        "an index out of range",
        values.SparseMatrix(n_variables=3, index_gap=[9], value=[1.0]),
        "index 9; the last one is 8",
    ),
    ("the largest gap", values.SparseMatrix(n_variables=3, index_gap=[2**32 - 1], value=[1.0]), "index 4294967295"),
    ("too many entries", values.SparseMatrix(n_variables=3, index_gap=[1] * 7, value=[1.0] * 7), "7 entries"),
]
NINE = [0.5] * 9
MALFORMED_DENSE: list[tuple[str, values.DenseMatrix, str]] = [
    ("another number of variables", values.DenseMatrix(n_variables=4, value=[0.5] * 16), "over 4 variables"),
    ("no number of variables", values.DenseMatrix(value=NINE), "over 0 variables; this run has 3"),
    ("a value less", values.DenseMatrix(n_variables=3, value=NINE[1:]), "8 values; expected 9"),
    ("a value more", values.DenseMatrix(n_variables=3, value32=[0.5] * 10), "10 values; expected 9"),
    ("no values", values.DenseMatrix(n_variables=3), "0 values; expected 9"),
    ("both precisions", values.DenseMatrix(n_variables=3, value=NINE, value32=NINE), "both"),
    ("nan", values.DenseMatrix(n_variables=3, value=[*NINE[1:], math.nan]), "not finite"),
    ("-inf in float32", values.DenseMatrix(n_variables=3, value32=[-math.inf, *NINE[1:]]), "not finite"),
]


@pytest.mark.parametrize(
    ("wire", "text"), [pytest.param(*case[1:], id=case[0]) for case in (*MALFORMED_MATRICES, *MALFORMED_DENSE)]
)
def test_a_message_with_a_malformed_matrix_is_refused(
    wire: values.SparseMatrix | values.DenseMatrix, text: str
) -> None:
    dense = isinstance(wire, values.DenseMatrix)
    good = values.DenseMatrix(n_variables=3, value=NINE) if dense else values.SparseMatrix(n_variables=3)
    field, before = ("admm_dense", "dense_") if dense else ("admm", "")
    task, update = federation.Task(round=1, **{field: wire}), federation.Update(round=1, site="a", **{field: wire})
    with pytest.raises(MalformedMessageError, match=text):
        codec.decode_task(parsed(federation.Task, task), n_variables=3, dense=dense)
    with pytest.raises(MalformedMessageError, match=text):
        codec.decode_update(parsed(federation.Update, update), n_variables=3, dense=dense)
    for weights, dual in ((good, wire), (wire, good)):
        held = {f"{before}local_weights": weights, f"{before}consensus_dual": dual}
        with pytest.raises(MalformedMessageError, match=text):
            codec.decode_join_reply(federation.JoinReply(variable=["x", "y", "z"], **held))
    if not dense:
        with pytest.raises(MalformedMessageError, match=text):
            codec.decode_finished(federation.Finished(graph=wire), n_variables=3)


@pytest.mark.parametrize("sent_dense", [True, False])
def test_weights_in_the_representation_of_another_plan_are_refused(sent_dense: bool) -> None:
    matrix = SparseMatrix(3, np.array([1, 3, 7]), np.array([1.0, -2.5, 1e-9]))
    task = codec.encode_task(RoundTask(1, admm_rounds.Task(matrix), True), value_type="float64", dense=sent_dense)
    update = codec.encode_update(
        LocalUpdate("a", 1, admm_rounds.Answer(matrix)), run=1, value_type="float64", dense=sent_dense
    )
    codec.decode_task(task, n_variables=3, dense=sent_dense)
    codec.decode_update(update, n_variables=3, dense=sent_dense)
    with pytest.raises(MalformedMessageError, match=r"; expected admm(_dense)?$"):
        codec.decode_task(task, n_variables=3, dense=not sent_dense)
    with pytest.raises(MalformedMessageError, match=r"; expected admm(_dense)?$"):
        codec.decode_update(update, n_variables=3, dense=not sent_dense)


def test_a_snapshot_of_two_representations_is_refused() -> None:
    full, few = values.DenseMatrix(n_variables=2, value=[0.5] * 4), values.SparseMatrix(n_variables=2)
    for reply in (
        federation.JoinReply(variable=["x", "y"], dense_local_weights=full, consensus_dual=few),
        federation.JoinReply(variable=["x", "y"], local_weights=few, dense_consensus_dual=full),
        federation.JoinReply(variable=["x", "y"], dense_local_weights=full),
    ):
        with pytest.raises(MalformedMessageError, match="; expected"):
            codec.decode_join_reply(reply)


@pytest.mark.parametrize("dense", [False, True])
def test_a_task_or_update_without_its_matrix_is_refused(dense: bool) -> None:
    with pytest.raises(MalformedMessageError):
        codec.decode_task(federation.Task(round=1), n_variables=3, dense=dense)
    with pytest.raises(MalformedMessageError):
        codec.decode_update(federation.Update(round=1, site="a"), n_variables=3, dense=dense)


def test_round_0_is_refused() -> None:
    empty = values.SparseMatrix(n_variables=3)
    with pytest.raises(MalformedMessageError, match="round 0"):
        codec.decode_task(federation.Task(admm=empty), n_variables=3)
    with pytest.raises(MalformedMessageError, match="round 0"):
        codec.decode_update(federation.Update(site="a", admm=empty), n_variables=3)


@pytest.mark.parametrize(
    ("variance", "text"),
    [
        ([1.0, 1.0], "2 residual variances, .*; expected 3"),
        ([1.0] * 4, "4 residual variances"),
        ([1.0, -1e-300, 1.0], "or one below 0"),
        ([1.0, math.nan, 1.0], "not finite"),
        ([1.0, math.inf, 1.0], "not finite"),
    ],
)
def test_impossible_residual_variances_are_refused(variance: list[float], text: str) -> None:
    refitted = federation.Refitted(weights=values.SparseMatrix(n_variables=3), residual_variance=variance)
    wire = federation.Update(round=1, site="a", refit=refitted)
    with pytest.raises(MalformedMessageError, match=text):
        codec.decode_update(wire, n_variables=3)


MANY = values.Numbers(value=[1.0] * 7)
IMPOSSIBLE_NUMBERS: list[tuple[federation.Update, str]] = [
    (federation.Update(round=1, moments=MANY), "7 numbers; expected at most 6"),
    (federation.Update(round=1, scales=values.Numbers(value32=[1.0] * 4)), "4 numbers; expected at most 3"),
    (federation.Update(round=1, scales=values.Numbers(value=[math.nan])), "not finite"),
    (federation.Update(round=1, moments=values.Numbers(value=[1.0], value32=[1.0])), "both precisions"),
    (
        federation.Update(
            round=1,
            residual_moments=federation.ResidualMoments(moments=values.Numbers(value=[1.0] * 11), task_digest=bytes(8)),
        ),
        "11 numbers; expected at most 10",
    ),
    (federation.Update(round=1, residual_moments=federation.ResidualMoments(task_digest=bytes(7))), "7 bytes"),
]


@pytest.mark.parametrize(("wire", "text"), IMPOSSIBLE_NUMBERS)
def test_impossible_numbers_are_refused(wire: federation.Update, text: str) -> None:
    with pytest.raises(MalformedMessageError, match=text):
        codec.decode_update(parsed(federation.Update, wire), n_variables=3)


# ---- secure aggregation
# ---------------------------------------------------------------------------------------------------


def masked_update(**fields: object) -> federation.Update:
    given = {"kind": "scales", "numbers": bytes(16), "task_digest": bytes(8), **fields}
    return federation.Update(round=2, site="a", masked_sum=federation.MaskedSum(**given))  # type: ignore[arg-type]


def test_a_part_of_a_secure_aggregation_survives_the_wire() -> None:
    numbers = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    update = LocalUpdate("a", 2, MaskedSum("residual_moments", numbers, b"a digest"))
    wire = parsed(federation.Update, codec.encode_update(update, run=1, value_type="float32"))
    assert codec.decode_update(wire, n_variables=3) == update
    assert update.content.kind == "residual_moments"
    other = LocalUpdate("a", 2, MaskedSum("residual_moments", numbers[::-1].copy(), b"a digest"))
    assert codec.decode_update(wire, n_variables=3) != other


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "rumours"}, "unknown kind"),
        ({"numbers": bytes(15)}, "another size"),
        ({"task_digest": bytes(7)}, "another size"),
        ({"numbers": bytes(8 * 11)}, "11 masked numbers; expected at most 10"),
    ],
)
def test_an_impossible_part_of_a_secure_aggregation_is_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(MalformedMessageError, match=text):
        codec.decode_update(masked_update(**fields), n_variables=3)


def test_memberships_come_with_the_task_after_the_keys_and_with_what_a_site_that_joins_is_told() -> None:
    task = RoundTask(2, scales_rounds.Task(), contributed=True, memberships=MEMBERSHIPS)
    assert codec.decode_task(codec.encode_task(task, value_type="float64"), n_variables=3) == task
    zero = SparseMatrix.zeros(3)
    reply = JoinReply(1, "rounds = 1", b"12", ("x", "y", "z"), SiteState(zero, zero, memberships=MEMBERSHIPS), 4)
    assert codec.decode_join_reply(codec.encode_join_reply(reply)).snapshot.memberships == MEMBERSHIPS


@pytest.mark.parametrize(
    "memberships",
    [(MEMBERSHIPS[0], MEMBERSHIPS[0]), (replace(MEMBERSHIPS[0], site="../east"),),
     (replace(MEMBERSHIPS[0], n_samples=0),),
     (replace(MEMBERSHIPS[0], public_key=bytes(31)),)],
)  # fmt: skip
def test_impossible_memberships_are_refused(memberships: tuple[Membership, ...]) -> None:
    wire = codec.encode_task(RoundTask(1, keys_rounds.Task(memberships), contributed=False), value_type="float64")
    with pytest.raises(MalformedMessageError, match="membership"):
        codec.decode_task(wire, n_variables=3)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"public_key": bytes(31)}, "a key of"),
        ({"public_key": bytes(33)}, "a key of"),
        ({"signature": bytes(129)}, "a key of"),
        ({"task_digest": bytes(7)}, "not of 8 bytes"),
    ],
)
def test_an_impossible_key_is_refused(changed: dict[str, bytes], text: str) -> None:
    keys = federation.Keys(**{"public_key": bytes(32), "task_digest": bytes(8), **changed})  # type: ignore[arg-type]
    with pytest.raises(MalformedMessageError, match=text):
        codec.decode_update(federation.Update(round=1, site="a", keys=keys), n_variables=3)


def test_lost_sites_come_with_every_task_and_are_in_its_digest() -> None:
    lost = (Loss("north", 2), Loss("west", 2))
    task = RoundTask(2, scales_rounds.Task(), contributed=False, lost=lost)
    assert codec.decode_task(codec.encode_task(task, value_type="float64"), n_variables=3) == task
    digests = {codec.task_digest(scales_rounds.Task(), None, lost[:k]) for k in range(3)}
    assert len(digests) == 3


@pytest.mark.parametrize(
    "lost",
    [(Loss("../north", 1),), (Loss("north", 0),), (Loss("north", 3),), (Loss("north", 2), Loss("west", 1)),
     (Loss("north", 1), Loss("north", 2))],
)  # fmt: skip
def test_impossible_losses_are_refused(lost: tuple[Loss, ...]) -> None:
    wire = codec.encode_task(RoundTask(2, scales_rounds.Task(), contributed=False, lost=lost), value_type="float64")
    with pytest.raises(MalformedMessageError, match="lost"):
        codec.decode_task(wire, n_variables=3)


def test_a_task_digest_tells_contents_and_units_apart() -> None:
    one, other = Units(np.empty(0), np.ones(3)), Units(np.empty(0), np.array([1.0, 1.0, np.nextafter(1.0, 2.0)]))
    matrix = SparseMatrix(3, np.array([1]), np.array([0.5]))
    contents = [
        residual_rounds.Task(matrix, np.ones(3)),
        residual_rounds.Task(matrix, np.array([1.0, 1.0, np.nextafter(1.0, 2.0)])),
        residual_rounds.Task(replace(matrix, index=np.array([3])), np.ones(3)),
        scales_rounds.Task(),
        statistics_rounds.Task(),
    ]
    digests = [codec.task_digest(content, units) for content in contents for units in (None, one, other)]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("scales", [[1.0, 1.0], [1.0, 0.0, 1.0], [1.0, -1.0, 1.0], [1.0, math.inf, 1.0], []])
def test_impossible_scales_are_refused(scales: list[float]) -> None:
    asked = federation.ResidualMomentsTask(weights=values.SparseMatrix(n_variables=3), scale=scales)
    with pytest.raises(MalformedMessageError):
        codec.decode_task(parsed(federation.Task, federation.Task(round=1, residual_moments=asked)), n_variables=3)


@pytest.mark.parametrize(
    ("site", "variables", "text"),
    [
        ("a", [], "0 variables"),
        ("a", ["x"], "1 variables"),
        ("a", ["x", "y", "x"], "repeated"),
        ("a", ["x", ""], "empty name"),
        ("a", ["x", " \t"], "empty name"),
        ("", ["x", "y"], "empty name"),
        ("a", ["x", "y" * 1001], "more than 1000 characters"),
        ("a" * 1001, ["x", "y"], "more than 1000 characters"),
    ],
)
def test_an_impossible_application_is_refused(site: str, variables: list[str], text: str) -> None:
    wire = federation.JoinRequest(site=site, variable=variables, n_samples=50, protocol_version=1)
    with pytest.raises(MalformedMessageError, match=text):
        codec.decode_join(parsed(federation.JoinRequest, wire))


def test_an_application_with_too_many_variables_is_refused() -> None:
    names = [str(k) for k in range(65_536)]
    with pytest.raises(MalformedMessageError, match="65536 variables"):
        codec.decode_join(federation.JoinRequest(site="a", variable=names))
    assert (
        len(codec.decode_join(federation.JoinRequest(site="a", variable=names[:-1], n_samples=1)).variables) == 65_535
    )


@pytest.mark.parametrize("variables", [[], ["x"], ["x", "x"], ["x", ""]])
def test_a_run_over_impossible_variables_is_refused(variables: list[str]) -> None:
    empty = values.SparseMatrix(n_variables=len(variables))
    wire = federation.JoinReply(run=1, variable=variables, local_weights=empty, consensus_dual=empty)
    with pytest.raises(MalformedMessageError):
        codec.decode_join_reply(parsed(federation.JoinReply, wire))


# ---- arbitrary bytes -----------------------------------------------------------------------------------------------


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
        elif not isinstance(part, bytes):
            assert np.isfinite(part).all()


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
        {"phase": Phase("bootstrap", 0.25, 4.0, 12.0)},
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

"""Messages survive the wire bit for bit, stay as small as promised, and nothing invalid gets through."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from any_matrices import MEMBERSHIPS, QUICK, assert_same_bits, full_matrices, matrices, off_diagonal, parsed
from fedbnsl.errors import MalformedMessageError
from fedbnsl.graphs.directed_pair import DirectedPair
from fedbnsl.protocol import codec, matrix_codec, rice
from fedbnsl.protocol.messages import (
    Content,
    Covariances,
    LocalUpdate,
    RoundTask,
)
from fedbnsl.protocol.sparse import Index, Matrix, SparseMatrix, formula_bytes
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.rounds import completion as completion_rounds
from fedbnsl.rounds import counts as counts_rounds
from fedbnsl.rounds import curvature as curvature_rounds
from fedbnsl.rounds import hinges as hinges_rounds
from fedbnsl.rounds import keys as keys_rounds
from fedbnsl.rounds import moments as moments_rounds
from fedbnsl.rounds import noise as noise_rounds
from fedbnsl.rounds import refit as refit_rounds
from fedbnsl.rounds import regressions as regression_rounds
from fedbnsl.rounds import residual_moments as residual_rounds
from fedbnsl.rounds import scales as scales_rounds
from fedbnsl.rounds import statistics as statistics_rounds
from fedbnsl.rounds import validation as validation_rounds
from fedbnsl.rounds.kinds import KINDS
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import values_pb2 as values

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


def tasks_of(matrix: SparseMatrix) -> list[Content]:
    """One of every kind."""
    scales = np.linspace(0.1, 7.0, matrix.n_variables)
    return [
        admm_rounds.Task(matrix),
        refit_rounds.Task(matrix),
        moments_rounds.Task(replace(matrix, value=np.ones(matrix.nnz))),
        moments_rounds.Task(replace(matrix, value=np.ones(matrix.nnz)), matrix),
        scales_rounds.Task(),
        statistics_rounds.Task(),
        residual_rounds.Task(matrix, scales),
        keys_rounds.Task(MEMBERSHIPS),
        completion_rounds.Task(None),
        completion_rounds.Task(Covariances(np.diag(scales), scales)),
        hinges_rounds.Task(np.arange(5 * (5 < matrix.n_variables < 500))),
        curvature_rounds.Task(replace(matrix, value=np.ones(matrix.nnz)), np.arange(1, matrix.n_variables)),
        noise_rounds.Task(()),
        noise_rounds.Task((DirectedPair(1, 0, tuple(range(2, matrix.n_variables))),)),
        counts_rounds.Task.of(((0, 1), (1,))),
        counts_rounds.Task.of(()),
        regression_rounds.Task((regression_rounds.Family((0,), (1,)),), scales[:1]),
        validation_rounds.Task('{"name": "Märker"}'),
    ]


def answers_of(matrix: SparseMatrix, numbers: Matrix) -> list[Content]:
    """One of every kind, with numbers of at least 0."""
    whole = np.arange(len(numbers) * (len(numbers) + 1) // 2)
    return [
        admm_rounds.Answer(matrix),
        refit_rounds.Answer(matrix, numbers),
        moments_rounds.Answer(numbers),
        moments_rounds.Answer(numbers, numbers[::-1].copy(), 7, np.sqrt(numbers)),
        scales_rounds.Answer(numbers),
        statistics_rounds.Answer(numbers, np.abs(numbers), 12.5, numbers, numbers, np.array([[0, 4, 2], [0, 5, 1]])),
        residual_rounds.Answer(numbers, b"a digest"),
        keys_rounds.Answer(bytes(range(32)), b"signature", b"8 digits"),
        completion_rounds.Answer(np.sqrt(whole), whole, np.empty(0), 0.0, np.tile(-numbers, (len(numbers), 1)), 7),
        completion_rounds.Answer(np.sqrt(whole), np.empty(0, dtype=np.int64), numbers, -3.5),
        hinges_rounds.Answer(7, numbers),
        curvature_rounds.Answer(np.tile(np.abs(numbers), 10).reshape(-1, 10)),
        noise_rounds.Answer(np.empty((0, 21))),
        noise_rounds.Answer(np.tile(np.abs(numbers), 21).reshape(-1, 21)),
        counts_rounds.Answer(np.array([2, 0, 1]), np.array([0, 3, 1]), np.array([4, 1, 900]), b"8 digits"),
        counts_rounds.Answer(np.zeros(2, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), b"8 digits"),
        regression_rounds.Answer(whole, np.sqrt(whole), -numbers, numbers, numbers),
        validation_rounds.Answer(whole[:2], whole[:2], -numbers, numbers, whole[:2] % 2, whole, numbers),
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

"""Messages whose matrices, numbers or masked sums are not as they have to be are refused."""

import math
from dataclasses import replace

import numpy as np
import pytest

from any_matrices import MEMBERSHIPS, parsed
from fedbnsl.errors import MalformedMessageError
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import (
    JoinReply,
    LocalUpdate,
    Loss,
    MaskedSum,
    Membership,
    RoundTask,
    SiteState,
    Units,
)
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.rounds import keys as keys_rounds
from fedbnsl.rounds import residual_moments as residual_rounds
from fedbnsl.rounds import scales as scales_rounds
from fedbnsl.rounds import statistics as statistics_rounds
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import values_pb2 as values

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
            residual_moments=federation.ResidualMoments(moments=values.Numbers(value=[1.0] * 29), task_digest=bytes(8)),
        ),
        "29 numbers; expected at most 28",
    ),
    (federation.Update(round=1, residual_moments=federation.ResidualMoments(task_digest=bytes(7))), "7 bytes"),
]


@pytest.mark.parametrize(("wire", "text"), IMPOSSIBLE_NUMBERS)
def test_impossible_numbers_are_refused(wire: federation.Update, text: str) -> None:
    with pytest.raises(MalformedMessageError, match=text):
        codec.decode_update(parsed(federation.Update, wire), n_variables=3)


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
        ({"numbers": bytes(8 * 29)}, "29 masked numbers; expected at most 28"),
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


@pytest.mark.parametrize(
    "far",
    [
        ([0], [4], [1, 2]),
        ([3], [4], [1]),
        ([0], [4], [0]),
        ([0], [401], [1]),
        ([0], [-401], [1]),
        ([0], [1], [1]),
        ([0], [-1], [1]),
        ([0], [4], [2**63]),
        ([0, 0], [2, 2], [1, 1]),
        ([0, 0], [2, -2], [1, 1]),
        ([1, 0], [2, 3], [1, 1]),
    ],
)
def test_impossible_counts_of_far_values_are_refused(far: tuple[list[int], list[int], list[int]]) -> None:
    columns, bins, counts = far
    told = federation.Statistics(complete_rows=5, spread=[1.0] * 3, far_column=columns, far_bin=bins, far_count=counts)
    wire = federation.Update(site="a", round=1, statistics=told)
    with pytest.raises(MalformedMessageError, match="far values"):
        codec.decode_update(parsed(federation.Update, wire), n_variables=3)


@pytest.mark.parametrize("limits", [[1.0] * 3, [1.0, -1.0, 1.0] * 2, [math.nan] + [1.0] * 5])
def test_impossible_limits_of_values_are_refused(limits: list[float]) -> None:
    units = federation.Units(scale=[1.0] * 3, limit=limits)
    wire = federation.Task(round=1, scales=federation.ScalesTask(), units=units)
    with pytest.raises(MalformedMessageError):
        codec.decode_task(parsed(federation.Task, wire), n_variables=3)


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


def test_a_table_of_more_variables_than_a_search_uses_is_refused() -> None:
    """Nearly every record would have a cell for itself."""
    for size, is_refused in ((8, False), (9, True), (12, True)):
        wire = federation.Task(round=1, counts=federation.CountsTask(size=[size], variable=range(size)))
        if is_refused:
            with pytest.raises(MalformedMessageError, match=f"a set of {size} variables; a table has at most 8"):
                codec.decode_task(parsed(federation.Task, wire), n_variables=12)
        else:
            codec.decode_task(parsed(federation.Task, wire), n_variables=12)

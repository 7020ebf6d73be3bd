"""A state survives the disk bit for bit; a write that fails leaves the one before; nothing damaged gets in."""

import errno
import json
import math
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbnsl.errors import ResultError
from fedbnsl.files.shortage import shortage
from fedbnsl.protocol.messages import Membership, SiteState, Units
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl_server.algorithm.admm import AdmmState, initial_state
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.inference.confidence import Confidence
from fedbnsl_server.inference.curves import Below, Curves, Effect, Total
from fedbnsl_server.search.private.released_likelihood import Release
from fedbnsl_server.search.squared_residuals import SquaredResiduals
from fedbnsl_server.store import checkpoint

DIGEST = bytes(range(32))
FINITE = st.floats(allow_nan=False, allow_infinity=False)  # signed zeros and subnormals among them


def bits(state: AdmmState) -> list[object]:
    def of(matrix: SparseMatrix | None) -> object:
        if matrix is None:
            return None
        assert matrix.index.dtype == np.int64
        assert matrix.value.dtype == np.float64
        return matrix.n_variables, matrix.index.tolist(), [float(v).hex() for v in matrix.value]

    return [
        state.round,
        of(state.global_weights),
        float(state.acyclicity_dual).hex(),
        float(state.acyclicity).hex(),
        state.contributed,
        of(state.change),
        of(state.neighbours),
        [float(v).hex() for v in state.scales],
        [float(v).hex() for v in state.mean_squares],
        [(site, of(s.local_weights), of(s.consensus_dual), of(s.global_weights)) for site, s in state.sites.items()],
        of(state.refitted),
        of(state.next_weights),
        state.residual_variance.dtype,
        [float(v).hex() for v in state.residual_variance],
    ]


@st.composite
def states(draw: st.DrawFn) -> AdmmState:
    d = draw(st.integers(2, 6))

    def matrix() -> SparseMatrix:
        index = sorted(draw(st.sets(st.integers(0, d * d - 1))))
        value = draw(st.lists(FINITE, min_size=len(index), max_size=len(index)))
        return SparseMatrix(d, np.array(index, dtype=np.int64), np.array(value, dtype=np.float64))

    names = draw(st.lists(st.text("abcé-._9", min_size=1, max_size=4), min_size=1, max_size=4, unique=True))
    refitted = matrix() if draw(st.booleans()) else None
    W = matrix()
    change = matrix() if draw(st.booleans()) else None
    return AdmmState(
        round=draw(st.integers(0, 10**6)),
        global_weights=W,
        change=change,
        scales=np.array(draw(st.lists(FINITE, max_size=d))),
        mean_squares=np.array(draw(st.lists(FINITE, max_size=d))),
        neighbours=matrix() if draw(st.booleans()) else None,
        acyclicity_dual=draw(FINITE),
        acyclicity=draw(FINITE),
        contributed=frozenset(draw(st.sets(st.sampled_from(names)))),
        sites={name: SiteState(matrix(), matrix(), W if change else None) for name in names},
        refitted=refitted,
        next_weights=matrix() if refitted and draw(st.booleans()) else None,
        residual_variance=np.array(draw(st.lists(FINITE, min_size=d, max_size=d))) if refitted else np.empty(0),
    )


def matrix(*entries: tuple[int, float]) -> SparseMatrix:
    return SparseMatrix(3, np.array([k for k, _ in entries], dtype=np.int64), np.array([v for _, v in entries]))


@pytest.fixture
def state() -> AdmmState:
    return AdmmState(
        round=4,
        global_weights=matrix((1, 0.1 + 0.2), (6, -1 / 3)),
        acyclicity_dual=2 / 3,
        acyclicity=1e-17,
        contributed=frozenset({"b"}),
        sites={"a": SiteState(matrix((3, -0.0)), matrix()), "b": SiteState(matrix((1, 5e-324)), matrix((7, 1e300)))},
        refitted=matrix((1, 0.5)),
        residual_variance=np.array([1.0, 0.0, 1 / 7]),
    )


# ---- round trip ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states())
def test_a_state_survives_the_disk_bit_for_bit(tmp_path: Path, state: AdmmState) -> None:
    checkpoint.save(tmp_path / "state", state, plan_digest=DIGEST)
    assert bits(checkpoint.load(tmp_path / "state", plan_digest=DIGEST)) == bits(state)


def test_memberships_survive_the_disk_also_under_the_name_that_earlier_versions_gave_them(
    tmp_path: Path, state: AdmmState
) -> None:
    memberships = Membership("a", 7, b"certificate", b"key", b"signature"), Membership("b", 9)
    sites = {site: replace(one, memberships=memberships) for site, one in state.sites.items()}
    file = tmp_path / "state.npz"
    checkpoint.save(file, replace(state, sites=sites), plan_digest=DIGEST)
    assert checkpoint.load(file, plan_digest=DIGEST).memberships == memberships
    with np.load(file) as stored:
        arrays = dict(stored)
    head = json.loads(arrays["head"].tobytes())
    head["seats"] = head.pop("memberships")
    np.savez(file, **{**arrays, "head": np.frombuffer(json.dumps(head).encode(), np.uint8)})
    assert checkpoint.load(file, plan_digest=DIGEST).memberships == memberships


def test_limits_of_values_and_how_many_lie_beyond_survive_the_disk(tmp_path: Path, state: AdmmState) -> None:
    d = state.global_weights.n_variables
    units = Units(np.empty(0), np.full(d, 0.1), np.array([[math.inf] * (d - 1) + [1 / 3], [math.inf] * d]))
    sites = {site: replace(one, units=units) for site, one in state.sites.items()}
    given = replace(state, sites=sites, outlying={"a": [0] * (d - 1) + [4]})
    checkpoint.save(tmp_path / "state", given, plan_digest=DIGEST)
    found = checkpoint.load(tmp_path / "state", plan_digest=DIGEST)
    assert found.units == units
    assert found.outlying == given.outlying


@pytest.mark.parametrize(
    "curves",
    [
        None,
        Curves(90, np.empty(0, dtype=np.int64)),
        Curves(
            90,
            np.array([1]),
            np.array([2.5, 1.0]),
            (Effect("a", "b", (-1.0, 1.0), (0.3, 0.1), (0.1, 0.2), 0.7),),
            (Total("a", ("c",), (-1.0, 1.0), ((0.2, 0.1), (0.1, 0.3)), (Below("b", (0.3, 0.1), 0.5),)),),
        ),
    ],
)
def test_curves_and_squares_of_residuals_survive_the_disk(tmp_path: Path, curves: Curves | None) -> None:
    squares = {site: SquaredResiduals(np.eye(2) + k, np.full((2, 2), 0.1 + k)) for k, site in enumerate("yx")}
    state = replace(initial_state(2, ["x", "y"]), curves=curves, squares=squares)
    checkpoint.save(tmp_path / "state", state, plan_digest=DIGEST)
    again = checkpoint.load(tmp_path / "state", plan_digest=DIGEST)
    assert list(again.squares) == ["y", "x"]
    for site, told in squares.items():
        np.testing.assert_array_equal(again.squares[site].weights, told.weights)
        np.testing.assert_array_equal(again.squares[site].products, told.products)
    if curves is None or again.curves is None:
        assert again.curves is curves
        return
    assert (again.curves.n_rows, again.curves.effects, again.curves.total) == (90, curves.effects, curves.total)
    np.testing.assert_array_equal(again.curves.columns, curves.columns)
    np.testing.assert_array_equal(again.curves.residual_variance, curves.residual_variance)


def test_confidence_survives_the_disk_bit_for_bit(tmp_path: Path, state: AdmmState) -> None:
    confidence = Confidence(
        n_samples=400.5,
        noise_std=1 / 3,
        edges=np.array([[0, 1], [2, 1]]),
        standard_error=np.array([0.1, math.nan]),
        variance=np.array([1.0, 2.0, 3.0]),
        residual_variance=np.array([0.1, 0.2, 1 / 7]),
        residual_correlation=np.empty((0, 0)),
        log_variance_error=np.array([1e-300, 0.0, 1.0]),
        sites=("a", "zoë"),
        site_estimate=np.array([[0.1, 0.2], [math.nan, -0.0]]),
        site_error=np.array([[0.3, 0.4], [math.nan, 0.5]]),
        q=np.array([1.5, 0.0]),
        degrees=np.array([1, 0]),
        draws=100,
        left_out=2,
        pairs=np.array([[0, 1]]),
        counts=np.array([[100, 3, 4, 2]]),
        n_apart=3,
        unexplained=np.empty((0, 2), dtype=np.int64),
        unexplained_correlation=np.empty(0),
        n_unexplained=0,
        uncounted=("zoë",),
        cost_of_knowledge=1.5,
        cost_on_same_pairs=30.25,
        against_knowledge=np.array([[2, 0]]),
    )
    for kept in (confidence, replace(confidence, sites=(), site_estimate=np.empty((0, 2)))):
        checkpoint.save(tmp_path / "state", replace(state, confidence=kept), plan_digest=DIGEST)
        loaded = checkpoint.load(tmp_path / "state", plan_digest=DIGEST).confidence
        assert loaded is not None
        for one in fields(Confidence):
            value, back = getattr(kept, one.name), getattr(loaded, one.name)
            assert type(back) is type(value)
            if isinstance(value, np.ndarray):
                assert (back.shape, back.dtype, back.tobytes()) == (value.shape, value.dtype, value.tobytes())
            else:
                assert back == value
    checkpoint.save(tmp_path / "state", state, plan_digest=DIGEST)
    assert checkpoint.load(tmp_path / "state", plan_digest=DIGEST).confidence is None


@pytest.mark.parametrize("refitted", [None, matrix(), matrix((2, 0.0))], ids=["none yet", "no edge", "a zero edge"])
def test_an_absent_refit_an_empty_one_and_a_zero_edge_are_told_apart(
    refitted: SparseMatrix | None, state: AdmmState, tmp_path: Path
) -> None:
    state = replace(state, refitted=refitted, residual_variance=np.empty(0) if refitted is None else np.zeros(3))
    checkpoint.save(tmp_path / "state", state, plan_digest=DIGEST)
    assert bits(checkpoint.load(tmp_path / "state", plan_digest=DIGEST)) == bits(state)


def test_a_state_without_any_entry_survives(tmp_path: Path) -> None:
    empty = AdmmState(0, matrix(), 0.0, 0.0, frozenset(), {"a": SiteState(matrix(), matrix())}, None, np.empty(0))
    checkpoint.save(tmp_path / "state", empty, plan_digest=DIGEST)
    assert bits(checkpoint.load(tmp_path / "state", plan_digest=DIGEST)) == bits(empty)


@pytest.mark.parametrize(("saved", "loaded"), [({"a": 3, "b": 4}, {"a": 3, "b": 4}), (7, {"a": 7})])
def test_rows_without_a_gap_are_kept_by_site_also_as_their_sum_of_earlier_versions(
    saved: Any, loaded: dict[str, int], state: AdmmState, tmp_path: Path
) -> None:
    completion = Completion(dict.fromkeys("ab", np.full((3, 3), 9.0)), complete_rows=saved)
    checkpoint.save(tmp_path / "state", replace(state, completion=completion), plan_digest=DIGEST)
    found = checkpoint.load(tmp_path / "state", plan_digest=DIGEST).completion
    assert found is not None
    assert found.complete_rows == loaded
    assert [(site, n.tolist()) for site, n in found.n_pairs.items()] == [(site, [[9.0] * 3] * 3) for site in "ab"]


def test_why_rows_without_a_gap_do_not_stand_for_all_survives_the_disk(state: AdmmState, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "state", replace(state, completion=Completion(unfit="differ")), plan_digest=DIGEST)
    found = checkpoint.load(tmp_path / "state", plan_digest=DIGEST).completion
    assert found is not None
    assert found.unfit == "differ"


def test_the_order_of_the_sites_is_kept(state: AdmmState, tmp_path: Path) -> None:
    backwards = replace(state, sites=dict(reversed(state.sites.items())))
    checkpoint.save(tmp_path / "state", backwards, plan_digest=DIGEST)
    assert list(checkpoint.load(tmp_path / "state", plan_digest=DIGEST).sites) == ["b", "a"]


def test_a_later_state_replaces_the_one_before_and_leaves_nothing_beside_it(state: AdmmState, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "state", state, plan_digest=DIGEST)
    checkpoint.save(tmp_path / "state", replace(state, round=5), plan_digest=DIGEST)
    assert checkpoint.load(tmp_path / "state", plan_digest=DIGEST).round == 5
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_the_state_of_another_plan_is_refused(state: AdmmState, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "state", state, plan_digest=DIGEST)
    with pytest.raises(ResultError, match="belongs to another plan"):
        checkpoint.load(tmp_path / "state", plan_digest=DIGEST[::-1])


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"checkpoint .*nowhere\.npz cannot be read"):
        checkpoint.load(tmp_path / "nowhere.npz", plan_digest=DIGEST)


def test_a_disk_that_fails_for_a_while_is_told_from_a_damaged_file(
    state: AdmmState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path / "state", state, plan_digest=DIGEST)

    def load(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(np, "load", load)
        with pytest.raises(ResultError, match=r"cannot be read: .*Input/output error") as passing:
            checkpoint.load(tmp_path / "state", plan_digest=DIGEST)
    assert shortage(passing.value) == os.strerror(errno.EIO)
    (tmp_path / "state").write_bytes(b"PK damaged")
    with pytest.raises(ResultError, match="cannot be read") as damaged:
        checkpoint.load(tmp_path / "state", plan_digest=DIGEST)
    assert shortage(damaged.value) == ""


@pytest.mark.parametrize("version", [1, 99])
def test_a_file_of_another_version_is_refused_by_its_format_though_it_lacks_arrays(
    version: int, tmp_path: Path
) -> None:
    head = json.dumps({"schema": f"fedbnsl.checkpoint/{version}"}).encode()
    with (tmp_path / "state").open("wb") as file:
        np.savez(file, head=np.frombuffer(head, np.uint8))
    with pytest.raises(
        ResultError, match=rf"the format 'fedbnsl\.checkpoint/{version}'; expected 'fedbnsl\.checkpoint/3'"
    ):
        checkpoint.load(tmp_path / "state", plan_digest=DIGEST)


def test_a_file_cut_off_anywhere_is_refused(state: AdmmState, tmp_path: Path) -> None:
    path = tmp_path / "state"
    checkpoint.save(path, state, plan_digest=DIGEST)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ResultError, match="cannot be read"):
            checkpoint.load(path, plan_digest=DIGEST)


@pytest.mark.long
def test_a_flipped_bit_is_refused_or_does_no_harm(state: AdmmState, tmp_path: Path) -> None:
    path = tmp_path / "state"
    checkpoint.save(path, state, plan_digest=DIGEST)
    whole = path.read_bytes()
    refused = 0
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            loaded = checkpoint.load(path, plan_digest=DIGEST)
        except ResultError:
            refused += 1
        else:
            assert bits(loaded) == bits(state), position  # a date or the like in the container
    assert refused > len(whole) / 2


@pytest.mark.parametrize(
    "garbage",
    [b"", b"garbage", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), b"\x93NUMPY", b"\x80\x04K\x01.", bytes(5000)],
    ids=["empty", "text", "a zip's head", "an empty zip", "a numpy head", "a pickle", "zeros"],
)
def test_garbage_is_refused(garbage: bytes, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(garbage)
    with pytest.raises(ResultError, match="cannot be read"):
        checkpoint.load(tmp_path / "state", plan_digest=DIGEST)


def test_a_single_array_and_foreign_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    for name in ("one.npy", "other.npz"):
        with pytest.raises(ResultError, match="cannot be read"):
            checkpoint.load(tmp_path / name, plan_digest=DIGEST)


# ---- interrupted writes --------------------------------------------------------------------------------------------


class PowerCut(BaseException):
    """Nothing of the program runs after it."""


@pytest.mark.parametrize("failing", ["fsync", "savez", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PowerCut()], ids=["full disk", "power cut"])
def test_an_interrupted_write_leaves_the_old_state_untouched(
    failing: str, error: BaseException, state: AdmmState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    checkpoint.save(path, state, plan_digest=DIGEST)
    before = path.read_bytes()

    def fail(*arguments: object, **options: object) -> None:
        raise error

    target = {"fsync": (os, "fsync"), "savez": (np, "savez"), "replace": (Path, "replace")}[failing]
    with monkeypatch.context() as broken:
        broken.setattr(*target, fail)
        with pytest.raises((ResultError, PowerCut)):
            checkpoint.save(path, replace(state, round=5), plan_digest=DIGEST)
    assert path.read_bytes() == before
    assert bits(checkpoint.load(path, plan_digest=DIGEST)) == bits(state)
    checkpoint.save(path, replace(state, round=5), plan_digest=DIGEST)
    assert checkpoint.load(path, plan_digest=DIGEST).round == 5, "the rest of a failed write is in nobody's way"


def test_a_full_disk_is_said_in_one_sentence_and_leaves_no_rest(
    state: AdmmState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultError, match=r"state cannot be written: No space left on device"):
        checkpoint.save(tmp_path / "state", state, plan_digest=DIGEST)
    assert list(tmp_path.iterdir()) == []


def recorded(events: list[str], name: str, call: Callable[..., object]) -> Callable[..., object]:
    def recording(*arguments: object, **options: object) -> object:
        events.append(name)
        return call(*arguments, **options)

    return recording


def test_bytes_reach_the_disk_before_the_name_and_the_name_before_save_returns(
    state: AdmmState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        there = os.readlink(f"/proc/self/fd/{descriptor}")
        size = os.fstat(descriptor).st_size
        events.append("fsync folder" if os.path.isdir(there) else f"fsync {Path(there).name} whole={size > 1000}")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", recorded(events, "rename", Path.replace))
    checkpoint.save(tmp_path / "state", state, plan_digest=DIGEST)
    assert events == ["fsync state.part whole=True", "rename", "fsync folder"]


def test_private_steps_survive_the_disk_bit_for_bit(tmp_path: Path, state: AdmmState) -> None:
    rng = np.random.default_rng(0)
    for sizes in ({}, {"a": 3}, {"b": 2, "a": 5}):
        steps = {site: rng.normal(size=(size, 4)) for site, size in sizes.items()}
        checkpoint.save(tmp_path / "state", replace(state, steps=steps), plan_digest=DIGEST)
        loaded = checkpoint.load(tmp_path / "state", plan_digest=DIGEST).steps
        assert {site: told.tobytes() for site, told in loaded.items()} == {
            site: told.tobytes() for site, told in steps.items()
        }


def test_releases_survive_the_disk_bit_for_bit(tmp_path: Path, state: AdmmState) -> None:
    rng = np.random.default_rng(0)
    for number in (0, 1, 3):
        releases = tuple(
            Release(rng.normal(size=(4, 4)), *rng.uniform(size=1), rng.normal(size=(4, 4)), *rng.uniform(size=3))
            for _ in range(number)
        )
        checkpoint.save(tmp_path / "state", replace(state, releases=releases), plan_digest=DIGEST)
        loaded = checkpoint.load(tmp_path / "state", plan_digest=DIGEST).releases
        assert len(loaded) == number
        for one, other in zip(loaded, releases, strict=True):
            assert one.moments.tobytes() == other.moments.tobytes()
            assert one.A.tobytes() == other.A.tobytes()
            assert one.noise_std == other.noise_std

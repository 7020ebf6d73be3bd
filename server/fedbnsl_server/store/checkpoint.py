"""The state of a run on disk: written whole or not at all, and on the disk before anybody is told."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.files import durable
from fedbnsl.graphs.contingency import VariableSet
from fedbnsl.protocol.messages import Covariances, Membership, SiteState, Units
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.inference.confidence import Confidence
from fedbnsl_server.inference.curvature import Curvature, Curve
from fedbnsl_server.inference.curves import Below, Curves, Effect, Total
from fedbnsl_server.inference.degenerate_columns import Unused
from fedbnsl_server.inference.directions import Direction
from fedbnsl_server.inference.experiments import Change, Difference, Experiments
from fedbnsl_server.inference.noise import Noise, NoiseTest
from fedbnsl_server.inference.regressions import Regression
from fedbnsl_server.inference.validation import Validation
from fedbnsl_server.search.counts.tables import Choice, Counted, SiteTables
from fedbnsl_server.search.private.released_likelihood import Release
from fedbnsl_server.search.squared_residuals import SquaredResiduals

_SCHEMA = "fedbnsl.checkpoint/3"
_OF_ANOTHER_VERSION = (
    "Another version of fedbnsl began this run: let it finish the run, or start the run's plan.toml again with another "
    "--out. Sites keep their ledgers: what the run has spent stays spent, and the new one is paid beside it."
)
_CONFIDENCE, _RELEASE, _COMPLETION, _COUNTED = "confidence_", "release_", "completion_", "counted_"
_REGRESSION = "regression_"
# `stretch`, `apart` and `asked` are of what a search makes of them.
_OF_RELEASE = [one.name for one in fields(Release) if one.name not in ("stretch", "apart", "asked")]
_NUMBERS_OF_COMPLETION = ("log_likelihood", "change", "iterations", "done", "complete_rows", "unfit")
_NO_STEPS = np.empty((0, 4))
_ARRAYS = ("sizes", "index", "value", "scalars", "residual_variance", "scales")


def save(path: Path, state: AdmmState, *, plan_digest: bytes) -> None:
    """Write the state; it is on the disk when this returns.

    Raises ResultError if it cannot be written; the old file stays.
    """
    of_sites = [matrix for site in state.sites.values() for matrix in (site.local_weights, site.consensus_dual)]
    there = (state.global_weights, state.change, state.neighbours, *of_sites, state.refitted, state.next_weights)
    matrices = [matrix for matrix in there if matrix is not None]
    units = state.units or Units(np.empty(0), np.empty(0))
    head = {
        "schema": _SCHEMA,
        "plan_digest": plan_digest.hex(),
        "round": state.round,
        "n_variables": state.global_weights.n_variables,
        "next_columns": state.global_weights.n_variables
        if state.next_weights is None
        else state.next_weights.n_variables,
        "sends_changes": state.change is not None,
        "neighbours": state.neighbours is not None,
        "contributed": sorted(state.contributed),
        "sites": list(state.sites),
        "complete_rows": dict(state.complete_rows),
        "outlying": dict(state.outlying),
        "curves": _head_of_curves(state.curves),
        "curvature": _head_of_curvature(state.curvature),
        "unused": asdict(state.unused),
        "memberships": [
            [one.site, one.n_samples, *(part.hex() for part in _bytes_of(one))] for one in state.memberships
        ],
        "steps": {site: len(told) for site, told in state.steps.items()},
        "completion": _head_of(state.completion),
        "moments": list(state.moments),
        "squares": list(state.squares),
        "counted": None if state.counted is None else list(state.counted.told),
        "given_up": state.counted is not None and state.counted.given_up,
        "choice": None if state.counted is None else state.counted.choice,
        "regressions": [_head_of_regression(one) for one in state.regressions],
        "noise": None if state.noise is None else asdict(state.noise),
        "directions": [asdict(one) for one in state.directions],
        "experiments": None if state.experiments is None else asdict(state.experiments),
        "validation": None if state.validation is None else state.validation.content(),
    }

    def write(file: BinaryIO) -> None:
        np.savez(
            file,
            head=np.frombuffer(json.dumps(head).encode(), np.uint8),
            scalars=np.array([state.acyclicity_dual, state.acyclicity]),
            residual_variance=state.residual_variance,
            scales=state.scales,
            mean_squares=state.mean_squares,
            spreads=state.spreads,
            value_shares=state.value_shares,
            means=state.means,
            unit_centres=units.centres,
            unit_scales=units.scales,
            unit_limits=units.limits,
            **_arrays_of(state.confidence),
            **_arrays_of_releases(state.releases),
            **_arrays_of_completion(state),
            squares=np.array([[one.weights, one.products] for one in state.squares.values()]),
            **_arrays_of_counts(state),
            **_arrays_of_regressions(state.regressions),
            steps=np.concatenate([_NO_STEPS, *state.steps.values()]),
            sizes=np.array([matrix.nnz for matrix in matrices]),
            index=np.concatenate([matrix.index for matrix in matrices]),
            value=np.concatenate([matrix.value for matrix in matrices]),
        )

    durable.write_file(path, write, mode=durable.OWNER_ONLY)


def load(path: Path, *, plan_digest: bytes) -> AdmmState:
    """The state that `save` wrote, bit for bit.

    Raises ResultError if the file cannot be read or belongs to another plan.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays: Mapping[str, Any] = {key: stored[key] for key in stored.files}
        head = json.loads(arrays["head"].tobytes())
        ours = head.get("schema") == _SCHEMA
        known: dict[str, Any] = {key: arrays[key] for key in _ARRAYS} if ours else {}  # another format may lack some
    except OSError as error:  # a disk that fails may pass: see `shortage`
        raise ResultError(f"checkpoint {path} cannot be read: {error}") from error
    except Exception as error:  # for a damaged file zipfile, numpy and json raise nearly anything
        raise ResultError(f"checkpoint {path} cannot be read: {error}") from None
    if not ours:
        raise ResultError(
            f"checkpoint {path} has the format {head.get('schema')!r}; expected {_SCHEMA!r}", remedy=_OF_ANOTHER_VERSION
        )
    if head["plan_digest"] != plan_digest.hex():
        raise ResultError(f"checkpoint {path} belongs to another plan")
    sizes, index, value, scalars, residual_variance, scales = known.values()
    ends = np.cumsum(sizes)
    d = int(head["n_variables"])
    matrices = [
        SparseMatrix(d, index[end - size : end], value[end - size : end]) for size, end in zip(sizes, ends, strict=True)
    ]
    W, *rest = matrices
    change = rest.pop(0) if head["sends_changes"] else None
    neighbours = rest.pop(0) if head["neighbours"] else None
    seen = None if change is None else W
    units = None
    if arrays.get("unit_scales", np.empty(0)).size:  # checkpoints of earlier versions have none
        units = Units(arrays["unit_centres"], arrays["unit_scales"], arrays.get("unit_limits", np.empty(0)))
    memberships = tuple(  # as above
        Membership(site, n_samples, *map(bytes.fromhex, parts))
        for site, n_samples, *parts in head.get("memberships", head.get("seats", []))  # the earlier name
    )
    completion = _completion(head.get("completion"), arrays)
    told = completion.by if completion is not None and completion.done else None
    sites = {site: SiteState(rest.pop(0), rest.pop(0), seen, units, memberships, told) for site in head["sites"]}
    return AdmmState(
        round=int(head["round"]),
        global_weights=W,
        change=change,
        scales=scales,
        mean_squares=arrays.get("mean_squares", np.empty(0)),  # checkpoints of earlier versions have none
        spreads=arrays.get("spreads", np.empty(0)),  # as above
        value_shares=arrays.get("value_shares", np.empty(0)),  # as above
        means=arrays.get("means", np.empty(0)),  # as above
        neighbours=neighbours,
        acyclicity_dual=float(scalars[0]),
        acyclicity=float(scalars[1]),
        contributed=frozenset(head["contributed"]),
        sites=sites,
        refitted=rest.pop(0) if rest else None,
        next_weights=replace(rest.pop(0), n_variables=head.get("next_columns", d)) if rest else None,  # as above
        residual_variance=residual_variance,
        complete_rows=head.get("complete_rows", {}),  # as above
        outlying=head.get("outlying", {}),  # as above
        curves=_curves(head.get("curves")),  # as above
        curvature=_curvature(head.get("curvature")),  # as above
        unused=Unused(**{name: tuple(columns) for name, columns in head.get("unused", {}).items()}),
        confidence=_confidence(arrays),
        releases=_releases(arrays),
        steps=_steps(head.get("steps", {}), arrays),  # as above
        completion=completion,
        moments=dict(zip(head.get("moments", ()), arrays.get("moments", ()), strict=True)),  # as above
        squares={  # as above
            site: SquaredResiduals(*told)
            for site, told in zip(head.get("squares", ()), arrays.get("squares", ()), strict=True)
        },
        counted=_counted(head, arrays),  # as above
        regressions=_regressions(head.get("regressions", []), arrays),  # as above
        noise=_noise(head.get("noise")),  # as above
        directions=tuple(Direction(**one) for one in head.get("directions", [])),  # as above
        experiments=_experiments(head.get("experiments")),  # as above
        validation=_validation(head.get("validation")),  # as above
    )


def _bytes_of(membership: Membership) -> tuple[bytes, bytes, bytes]:
    return membership.certificate, membership.public_key, membership.signature


def _head_of_curvature(told: Curvature | None) -> list[Any] | None:
    return None if told is None else [told.n_tested, told.n_possible, *told.curves]


def _head_of_curves(told: Curves | None) -> list[Any] | None:
    if told is None:
        return None
    return [told.n_rows, told.columns.tolist(), told.residual_variance.tolist(), told.effects, told.total]


def _curves(told: list[Any] | None) -> Curves | None:
    if told is None:
        return None
    n_rows, columns, variance, effects, totals = told
    of_pairs = (_effect(*one) for one in effects)
    of_all = (_total(*one) for one in totals)
    return Curves(n_rows, np.array(columns, dtype=np.int64), np.array(variance), tuple(of_pairs), tuple(of_all))


def _effect(
    source: str, target: str, at: list[float], change: list[float], error: list[float], *more: float | None
) -> Effect:
    return Effect(source, target, tuple(at), tuple(change), tuple(error), *more)


def _total(source: str, given: list[str], at: list[float], covariance: list[list[float]], below: list[Any]) -> Total:
    rows = tuple(tuple(row) for row in covariance)
    told = (Below(target, tuple(change), variance) for target, change, variance in below)
    return Total(source, tuple(given), tuple(at), rows, tuple(told))


def _curvature(told: list[Any] | None) -> Curvature | None:
    return None if told is None else Curvature(told[0], told[1], tuple(Curve(*one) for one in told[2:]))


def _noise(told: dict[str, Any] | None) -> Noise | None:
    if told is None:
        return None
    tests = (NoiseTest(*one) for one in told["tests"])
    return Noise(told["n_open"], tuple(tests), tuple(Direction(**one) for one in told["denied"]))


def _experiments(told: dict[str, Any] | None) -> Experiments | None:
    if told is None:
        return None
    differences = tuple(
        Difference(one["site"], one["variable"], one["log_likelihood"], tuple(Change(**c) for c in one["changes"]))
        for one in told["differences"]
    )
    return Experiments(told["n_open"], told["n_compared"], differences)


def _validation(told: dict[str, Any] | None) -> Validation | None:
    return None if told is None else Validation.of_content(told)


def _head_of(completion: Completion | None) -> dict[str, Any] | None:
    if completion is None:
        return None
    numbers = {name: getattr(completion, name) for name in _NUMBERS_OF_COMPLETION}
    return {**numbers, "sites": list(completion.n_pairs), "by": completion.by is not None}


def _arrays_of_completion(state: AdmmState) -> dict[str, Any]:
    if state.completion is None:
        return {}
    one = state.completion
    arrays: dict[str, Any] = {
        "arguments": one.arguments,
        "values": one.values,
        "n_pairs": np.array(list(one.n_pairs.values())),
        "differences": np.array(list(one.differences.values())),
    }
    if one.by is not None:
        arrays |= {"S": one.by.S, "means": one.by.means}
    return {_COMPLETION + name: array for name, array in arrays.items()}


def _completion(head: dict[str, Any] | None, arrays: Mapping[str, Any]) -> Completion | None:
    """None where the state has none, as in checkpoints of earlier versions."""
    if head is None:
        return None
    sites, by = head.pop("sites"), None
    if head.pop("by"):
        by = Covariances(arrays[_COMPLETION + "S"], arrays[_COMPLETION + "means"])
    n_pairs = dict(zip(sites, arrays[_COMPLETION + "n_pairs"], strict=True))
    if isinstance(head["complete_rows"], int):  # checkpoints of earlier versions have the sum
        head["complete_rows"] = dict(zip(sites, [head["complete_rows"]], strict=False))
    told: Matrix = arrays.get(_COMPLETION + "differences", np.empty(0))  # checkpoints of earlier versions have none
    return Completion(
        n_pairs,
        by,
        arrays[_COMPLETION + "arguments"],
        arrays[_COMPLETION + "values"],
        differences=dict(zip(sites, told, strict=True)) if len(told) else {},
        **head,
    )


def _arrays_of_counts(state: AdmmState) -> dict[str, Any]:
    arrays: dict[str, Any] = {"moments": np.array(list(state.moments.values()))}
    if state.counted is None:
        return arrays
    counted = state.counted
    arrays[_COUNTED + "dag"] = counted.dag
    for name, sets in (("sets", counted.sets), ("wanted", counted.wanted)):
        arrays[_COUNTED + name + "_sizes"] = np.array([len(one) for one in sets], dtype=np.int64)
        arrays[_COUNTED + name] = np.array([v for one in sets for v in one], dtype=np.int64)
    for k, told in enumerate(counted.told.values()):
        arrays |= {f"{_COUNTED}{k}_{name}": array for name, array in told._asdict().items()}
    return arrays


def _counted(head: Mapping[str, Any], arrays: Mapping[str, Any]) -> Counted | None:
    sites = head.get("counted")
    if sites is None:
        return None

    def sets(name: str) -> tuple[VariableSet, ...]:
        sizes = arrays[_COUNTED + name + "_sizes"]
        return tuple(
            tuple(one.tolist()) for one in np.split(arrays[_COUNTED + name], np.cumsum(sizes)[:-1])[: len(sizes)]
        )

    told = {
        site: SiteTables(*(arrays[f"{_COUNTED}{k}_{name}"] for name in SiteTables._fields))
        for k, site in enumerate(sites)
    }
    choice = head.get("choice")  # checkpoints of earlier versions have none
    choice = None if choice is None else Choice(*choice)
    return Counted(arrays[_COUNTED + "dag"], sets("sets"), told, sets("wanted"), head["given_up"], choice)


def _head_of_regression(one: Regression) -> dict[str, Any]:
    told = {part.name: getattr(one, part.name) for part in fields(one)}
    return {name: value for name, value in told.items() if not isinstance(value, np.ndarray)}


def _arrays_of_regressions(regressions: Sequence[Regression]) -> dict[str, Any]:
    return {
        f"{_REGRESSION}{k}_{part.name}": value
        for k, one in enumerate(regressions)
        for part in fields(one)
        if isinstance(value := getattr(one, part.name), np.ndarray)
    }


def _regressions(heads: Sequence[Mapping[str, Any]], arrays: Mapping[str, Any]) -> tuple[Regression, ...]:
    found: list[Regression] = []
    for k, head in enumerate(heads):
        start = f"{_REGRESSION}{k}_"
        values = {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}
        tuples = {name: tuple(head[name]) for name in ("child", "parents", "sites")}
        told: dict[str, Any] = {**head, **tuples, **values}
        found.append(Regression(**told))
    return tuple(found)


def _steps(sizes: Mapping[str, int], arrays: Mapping[str, Any]) -> dict[str, Matrix]:
    ends = np.cumsum(list(sizes.values()))
    return {site: arrays["steps"][end - size : end] for (site, size), end in zip(sizes.items(), ends, strict=True)}


def _arrays_of(confidence: Confidence | None) -> dict[str, Any]:
    if confidence is None:
        return {}
    return {_CONFIDENCE + one.name: np.asarray(getattr(confidence, one.name)) for one in fields(confidence)}


def _arrays_of_releases(releases: Sequence[Release]) -> dict[str, Any]:
    return {_RELEASE + name: np.array([getattr(release, name) for release in releases]) for name in _OF_RELEASE}


def _releases(arrays: Mapping[str, Any]) -> tuple[Release, ...]:
    """None where the state has none, as in checkpoints of earlier versions."""
    stored = [arrays.get(_RELEASE + name, np.empty(0)) for name in _OF_RELEASE]
    return tuple(
        Release(moments, float(noise_std), A, float(weight), float(norm_bound), float(constant))
        for moments, noise_std, A, weight, norm_bound, constant in zip(*stored, strict=True)
    )


def _confidence(arrays: Mapping[str, Any]) -> Confidence | None:
    """None where the state has none, as in checkpoints of earlier versions."""
    keys = {one.name: _CONFIDENCE + one.name for one in fields(Confidence)}
    if not all(key in arrays for key in keys.values()):
        return None
    values: dict[str, Any] = {
        name: arrays[key] if arrays[key].ndim else arrays[key].item() for name, key in keys.items()
    }
    for name in ("sites", "uncounted"):
        values[name] = tuple(values[name].tolist())
    return Confidence(**values)

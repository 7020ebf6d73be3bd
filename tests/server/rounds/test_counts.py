"""A round of counts: which answers are refused, and what its task holds."""

from dataclasses import replace

import numpy as np
import pytest

from fedbnsl.errors import MalformedMessageError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import LocalUpdate
from fedbnsl.rounds import counts
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl_server.algorithm.admm import initial_state, without
from fedbnsl_server.rounds.counts import fault, tables_of
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.search.counts.tables import Counted, SiteTables

DICTIONARY = Dictionary.model_validate(
    {
        "a": {"kind": "binary", "levels": ["no", "yes"]},
        "b": {"kind": "nominal", "levels": ["x", "y", "z"]},
        "c": {"kind": "binary", "levels": ["no", "yes"]},
    }
)
COLUMNS = ("a", "b=y", "b=z", "c")
PLAN = Plan.load("standard").with_dictionary(DICTIONARY, origin="here")
RUN = Run(PLAN, PLAN.edge_mask(COLUMNS), {"north": 10, "south": 7})
TASK = counts.Task.of(((0, 1), (2,)))
ANSWER = counts.Answer(
    n_cells=np.array([3, 2]), cells=np.array([0, 4, 5, 0, 1]), counts=np.array([4, 1, 5, 3, 7]),
    task_digest=TASK.digest,
)  # fmt: skip


def test_an_answer_of_possible_tables_is_taken() -> None:
    assert fault(ANSWER, TASK, RUN) == ""


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"task_digest": b"another!"}, "others were asked for"),
        ({"n_cells": np.array([3, 1, 1])}, "others were asked for"),
        ({"cells": np.array([0, 4, 6, 0, 1])}, "cells that its tables do not have"),
        ({"cells": np.array([0, 5, 4, 0, 1])}, "cells that its tables do not have"),
        ({"cells": np.array([0, 4, 5, 0, 2])}, "cells that its tables do not have"),
        ({"counts": np.array([4, 1, 5, 3, 6])}, "different numbers of records"),
        ({"counts": np.array([4, 1, 6, 3, 8])}, "more records than the site has"),
    ],
)
def test_an_impossible_answer_is_refused(changed: dict[str, object], reason: str) -> None:
    assert reason in fault(replace(ANSWER, **changed), TASK, RUN)


def test_a_site_that_is_taken_out_of_the_run_is_in_no_table() -> None:
    by_site = {
        site: SiteTables(np.array([2]), np.array([0, 1]), np.array(records))
        for site, records in {"north": [3, 7], "south": [5, 2]}.items()
    }
    found = Counted(np.zeros((3, 3), dtype=bool)).with_answers(((0,),), by_site)
    state = without(replace(initial_state(4, list(by_site)), counted=found), ["south"])
    table = tables_of(state, RUN).table((0,))
    assert table is not None
    assert table.tolist() == [3, 7]


def test_a_table_may_be_withheld() -> None:
    kept = replace(ANSWER, n_cells=np.array([0, 2]), cells=np.array([0, 1]), counts=np.array([3, 7]))
    assert fault(kept, TASK, RUN) == ""


@pytest.mark.parametrize("broken", ["n_cells", "step", "count", "zero", "huge", "digest"])
def test_a_malformed_answer_is_refused_at_the_door(broken: str) -> None:
    data = codec.update_to_bytes(LocalUpdate("north", 1, ANSWER), run=1, value_type="float32", dense=False)
    wire = federation.Update.FromString(data)
    assert codec.update_from_bytes(data, n_variables=4, dense=False).content == ANSWER
    told = wire.counts
    match broken:
        case "n_cells":
            told.n_cells[0] = 2
        case "step":
            told.step.append(1)
        case "count":
            told.count.append(1)
        case "zero":
            told.count[0] = 0
        case "huge":
            told.count[0] = 2**63
        case _:
            told.task_digest = b"short"
    with pytest.raises(MalformedMessageError):
        codec.update_from_bytes(wire.SerializeToString(), n_variables=4, dense=False)


@pytest.mark.parametrize(("sizes", "variables"), [([2], [1]), ([0], []), ([2], [1, 0]), ([1], [4]), ([2], [1, 1])])
def test_a_malformed_task_is_refused_at_the_door(sizes: list[int], variables: list[int]) -> None:
    wire = federation.Task(counts=federation.CountsTask(size=sizes, variable=variables))
    with pytest.raises(MalformedMessageError):
        counts.decode_task(wire, 4, codec.Encoding("float32", dense=False))


@pytest.mark.parametrize(("whole", "reason"), [(10, ""), (9, "10 records"), (11, "10 records")])
def test_tables_have_the_records_that_the_site_has_told_without_a_gap(whole: int, reason: str) -> None:
    found = fault(ANSWER, TASK, replace(RUN, whole_rows={"north": whole}))
    assert (reason in found) if reason else found == ""

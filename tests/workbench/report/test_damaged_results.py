"""A result.json that was changed is refused by the place, or shown: no change ends a report in an unexpected error."""

import copy
import json

import pytest

from class_runs import copied_without_charts, small_run
from fedbnsl.errors import ResultError
from fedbnsl_workbench.report.page import write_report

WRONG = {"text": 3, "number": "three", "list": {"a": [1]}, "object": ["a"]}


def kind_of(value):
    if isinstance(value, str):
        return "text"
    return "list" if isinstance(value, list) else "object" if isinstance(value, dict) else "number"


def places(value, here=()):
    """Every key but those of the second site and later ones, and of every list its last item."""
    keys = value if isinstance(value, dict) else [len(value) - 1][: len(value)] if isinstance(value, list) else ()
    keys = [key for key in keys if key not in ("site-2", "site-3")]
    for key in keys:
        yield (*here, key)
        yield from places(value[key], (*here, key))


def changed(content, place, change):
    found = copy.deepcopy(content)
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    if change == "removed":
        del inner[place[-1]]
    elif change == "null":
        inner[place[-1]] = None
    elif change == "empty":
        inner[place[-1]] = type(inner[place[-1]])()
    else:
        inner[place[-1]] = WRONG[kind_of(inner[place[-1]])]
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("damaged"))


@pytest.mark.parametrize("change", ["removed", "null", "empty", "of another kind"])
def test_a_changed_result_is_refused_or_shown(made, tmp_path, monkeypatch, change):
    run = copied_without_charts(made, tmp_path / "run", monkeypatch)
    file = run / "result.json"
    result = json.loads(file.read_text(encoding="utf-8"))
    refused = []
    for place in places(result):
        file.write_text(json.dumps(changed(result, place, change)), encoding="utf-8")
        try:
            write_report(run)
        except ResultError:
            refused.append(place)
    wanted = {("edges",), ("sites", "site-1", "bytes"), ("bytes", "down", "serialised"), ("rounds", 5, "contributed")}
    assert wanted <= set(refused) or change == "empty"


def test_what_is_wrong_in_a_changed_result_is_said_by_its_place(made, tmp_path, monkeypatch):
    run = copied_without_charts(made, tmp_path / "run", monkeypatch)
    file = run / "result.json"
    result = json.loads(file.read_text(encoding="utf-8"))
    result["edges"][1]["weight"] = "0.3"
    result["rounds"][0]["bytes"]["site-1"].pop("down")
    file.write_text(json.dumps(result), encoding="utf-8")
    said = "edges.1.weight: Input should be a valid number, rounds.0.bytes.site-1.down: Field required"
    with pytest.raises(ResultError, match=said):
        write_report(run)

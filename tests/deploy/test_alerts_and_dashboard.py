"""The alerts and the dashboard ask for metrics that the code exports, in queries that Prometheus understands."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "fedbnsl.json"
_NAME = re.compile(r'"(fedbnsl_\w+)"')
_COUNTER = re.compile(r'CounterMetricFamily\(\s*"(fedbnsl_\w+)"')
_METRIC = re.compile(r"\bfedbnsl_\w+")
_VARIABLES = {"$run": ".*", "$__rate_interval": "5m"}


def exported() -> set[str]:
    """The names of metrics, read off the code that makes them; a counter's ends in _total, as the client sees to."""
    files = [file for root in ("server", "client", "common") for file in (ROOT / root).rglob("*.py")]
    code = [file.read_text(encoding="utf-8") for file in files]
    counters = {name for text in code for name in _COUNTER.findall(text)}
    return {name for text in code for name in _NAME.findall(text)} - counters | {f"{name}_total" for name in counters}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[str]:
    """Of all panels of the dashboard."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def promtool(*words: str | Path) -> None:
    """Run promtool, which must find nothing wrong."""
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool, of the Debian package prometheus")
    done = subprocess.run(["promtool", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_ask_for_metrics_that_the_code_exports() -> None:
    asked = {name for rule in rules() for name in _METRIC.findall(rule["expr"])}
    assert len(asked) >= 9
    assert asked - exported() == set()


def test_the_dashboard_asks_for_metrics_that_the_code_exports() -> None:
    asked = {name for query in queries() for name in _METRIC.findall(query)}
    assert len(asked) >= 12
    assert asked - exported() == set()


def test_the_dashboard_uses_the_source_that_its_reader_chooses_and_places_no_panel_on_another() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource", "run"]
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert panel["type"] == "row" or [panel["datasource"], *(each["datasource"] for each in panel["targets"])] == [
            chosen
        ] * (1 + len(panel["targets"]))
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_prometheus_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    given = list(queries())
    for name, value in _VARIABLES.items():
        given = [query.replace(name, value) for query in given]
    assert not [query for query in given if "$" in query]
    recorded = [{"record": f"query_{n}", "expr": query} for n, query in enumerate(given)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}), encoding="utf-8")
    promtool("check", "rules", file)


def test_prometheus_finds_nothing_wrong_with_the_alerts() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)


def test_each_alert_fires_for_what_it_is_there_for() -> None:
    told = Path(__file__).with_name("alerts.test.yml")
    cases = yaml.safe_load(told.read_text(encoding="utf-8"))["tests"]
    fired = {case["alertname"] for test in cases for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules()}
    promtool("test", "rules", told)


def test_an_alert_says_what_is_wrong_and_what_to_do() -> None:
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}

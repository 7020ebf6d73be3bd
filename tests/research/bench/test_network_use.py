"""The benchmark of learned networks in use, on one generated set of hospitals."""

import pytest

from fedbnsl_research.bench import network_use


def test_networks_are_judged_on_rows_that_they_have_not_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_use, "_SPEED_ROWS", 1000)
    monkeypatch.setattr(network_use, "_SITES", 3)
    monkeypatch.setattr(network_use, "_PLANS", {"standard": network_use._PLANS["standard"]})
    standard, speed = network_use.network_use([0])
    assert 0.9 <= float(standard["values within 95 % intervals"]) <= 0.99
    assert float(standard["AUC, network"]) > 0.55
    real, synthetic = (float(standard[f"AUC, trained on {rows} rows"]) for rows in ("real", "synthetic"))
    assert abs(real - synthetic) < 0.1
    assert float(speed["seconds"]) >= 0.0

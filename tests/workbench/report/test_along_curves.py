"""How strong an edge is along a curve."""

import pytest

from fedbnsl_workbench.report.along_curves import along_curves


@pytest.mark.parametrize(("directed", "strength"), [(True, 0.1), (False, 0.8)])
def test_a_u_is_as_strong_as_from_the_end_that_bends_unless_its_direction_is_known(
    directed: bool, strength: float
) -> None:
    effects = [{"source": "a", "target": "b", "spread": 0.3}, {"source": "b", "target": "a", "spread": 1.6}]
    told = {
        "curves": {"effects": effects},
        "preparation": {"scale": "pooled", "scales": {"a": 2.0, "b": 3.0, "c": 1.0}},
        "edges": [
            {"source": "a", "target": "b", "directed": directed},
            {"source": "b", "target": "c", "directed": directed},
        ],
    }
    assert along_curves(told) == {("a", "b"): pytest.approx(strength)}

"""The figure of the compiled search step, on few variables: both ways find the same."""

import json

import numpy as np
import pytest

from fedbnsl_research.bench import kernels


@pytest.mark.parametrize("what", list(kernels.VARIABLES))
def test_the_compiled_step_and_numpy_find_the_same_parents(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(kernels, "VARIABLES", {what: 8})
    (row,) = kernels.kernels()
    assert row["families alike"] == "8 of 8"
    assert json.dumps(row, allow_nan=False)
    R, members = kernels._moments(8, hinges="hinges" in what)
    assert (max(map(len, members)) > 1) == ("hinges" in what)
    assert any(kernels.plain(R, members, np.arange(8), 0.01)), "no variable has a parent"

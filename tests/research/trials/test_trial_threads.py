"""How many threads linear algebra has inside a trial, wherever the trial runs."""

import io

import pytest
from rich.console import Console
from threadpoolctl import threadpool_info, threadpool_limits

from fedbnsl_research.trials.trials import run_trials


def threads():
    """What a trial runs: threads as it finds them; it leaves more to the next one, as a careless library would."""

    def function(trial):
        import numpy as np
        from threadpoolctl import threadpool_info, threadpool_limits

        _ = np.ones((2, 2)) @ np.ones((2, 2))
        found = [pool["num_threads"] for pool in threadpool_info()]
        threadpool_limits(2)
        return [{"threads": found}]

    return function


@pytest.mark.parametrize("options", [{"jobs": 1}, {"jobs": 2}, {"dask": "", "jobs": 1}], ids=str)
def test_a_trial_has_one_thread_wherever_it_runs(tmp_path, options):
    function = threads()
    seeds = range(1 if options == {"jobs": 1} else 3)  # so that some process has a second one
    with threadpool_limits(2):
        if all(pool["num_threads"] == 1 for pool in threadpool_info()):
            pytest.skip("one processor")
        outcomes = run_trials(
            function,
            [{"seed": seed} for seed in seeds],
            tmp_path / "t",
            work="t",
            title="t",
            console=Console(file=io.StringIO()),
            **options,
        )
    found = [count for outcome in outcomes for count in outcome.rows[0]["threads"]]
    assert found
    assert set(found) == {1}

from fedbnsl_research.bench.agents import agents


def test_runs_in_a_row_are_measured_from_real_processes() -> None:
    *idle, row = agents(n_runs=2, idle_s=1.0)
    assert [one["figure"] for one in idle] == ["idle coordinator with three agents", "idle agent"]
    assert all(one["resident MiB"] > 10 for one in idle)
    assert row["rounds of a run"] > 10
    assert 0 < row["seconds in the rounds of a run"] < row["seconds in all"]

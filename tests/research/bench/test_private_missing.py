"""The figure of private runs with values missing, on few rows."""

from fedbnsl_research.bench import private_missing as bench


def test_a_row_for_each_budget_and_way(monkeypatch) -> None:
    asked = list[tuple[float, list[float], dict[str, list[str]]]]()

    def learned(epsilon, tables, limits, seed, absent):
        gaps = [float((X != X).mean()) for X in tables]
        asked.append((epsilon, gaps, absent))
        return bench.np.eye(len(limits), k=1, dtype=bool)

    monkeypatch.setattr(bench, "_learned", learned)
    monkeypatch.setattr(bench, "_ROWS", 50)
    rows = list(bench.private_missing([3]))
    assert len(rows) == 2 * 6
    assert [epsilon for epsilon, *_ in asked] == [1.0] * 6 + [5.0] * 6
    none, tenth, fifth, columns, *_ = (sum(gaps) / len(gaps) for _, gaps, _ in asked)
    assert none == 0.0
    assert 0.05 < tenth < fifth < 0.25
    assert 0.05 < columns < 0.15
    assert sum(map(len, asked[3][2].values())) == round(columns * 8 * 20), "the plan says which columns are missing"
    assert rows[4]["runs with a false edge"] == "1 of 1", "the chain has more edges than the one that is true"
    assert rows[4]["runs that lost the edge"] == "0 of 1"


def test_a_private_run_on_tables_with_gaps_and_without_columns_finds_a_strong_edge() -> None:
    rng, tables = bench.np.random.default_rng(1), []
    for k in range(3):
        X = rng.standard_normal((2000, 3))
        X[:, 1] += X[:, 0]
        X[rng.random(X.shape) < 0.2] = bench.np.nan
        X[:, 2] = X[:, 2] if k else bench.np.nan
        tables.append(X)
    marks = bench._learned(20.0, tables, bench.np.full(3, 5.0), 1, {"site-1": ["X3"]})
    assert marks[0, 1]
    assert (marks | marks.T).sum() == 2

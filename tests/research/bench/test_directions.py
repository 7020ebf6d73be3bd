"""The figures of directions that sites tell, on a case that is small enough for a test."""

from fedbnsl_research.bench import directions as bench


def test_a_row_says_how_many_open_edges_are_directed_and_how_many_wrongly():
    row = bench._row(bench._Case(1, variables=8, sites=6), [3, 4])
    told, _, n_open = row["open edges directed"].partition(" of ")
    assert 0 < int(told) <= int(n_open)
    assert row["wrong"] == 0

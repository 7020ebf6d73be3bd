from fedbnsl_research.bench import startup


def test_each_row_has_the_least_of_its_turns_and_no_demo_writes_where_another_did(monkeypatch):
    calls: list[tuple[str, ...]] = []

    def costs(arguments):
        calls.append(tuple(arguments))
        return float(10 + calls.count(tuple(arguments))), float(20 - len(calls) % 3)

    monkeypatch.setattr(startup, "_costs", costs)
    rows = list(startup.startup())
    assert [row["seconds"] for row in rows] == [11.0] * 6
    assert all(row["cpu seconds"] == 18.0 for row in rows)
    assert len([call for call in set(calls) if "demo" in call]) == 3


def test_the_costs_are_those_of_the_process():
    seconds, cpu_seconds = startup._costs(["-c", "import time\ntime.sleep(0.2)"])
    assert seconds >= 0.2
    assert cpu_seconds > 0

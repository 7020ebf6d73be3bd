"""Parts of a search in threads: the order of the results, several at once, and the first failure."""

import threading

import pytest

from fedbnsl_server.run.threads import at_once, processors


@pytest.mark.parametrize("n", [1, 2, 7])
def test_results_come_in_the_order_of_the_items_however_many_threads(n: int) -> None:
    assert list(at_once(n)(lambda k: k * k, range(20))) == [k * k for k in range(20)]
    assert list(at_once(n)(lambda k: k, [])) == []


def test_so_many_run_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=20)
    list(at_once(3)(lambda k: together.wait(), range(3)))  # one after the other, the first would wait for ever


@pytest.mark.parametrize("n", [1, 3])
def test_a_failure_is_raised_and_no_new_part_begins(n: int) -> None:
    begun = list[int]()

    def part(k: int) -> None:
        begun.append(k)
        if k == 2:
            raise ValueError("no moments")

    with pytest.raises(ValueError, match="no moments"):
        list(at_once(n)(part, range(1000)))
    assert len(begun) < 1000


def test_there_is_a_processor() -> None:
    assert processors() >= 1

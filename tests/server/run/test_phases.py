"""What takes time in a run, as those see it that look now and then."""

from fedbnsl_server.run.phases import Phases
from fedbnsl_server.search.progress import Progress


def test_each_part_of_each_search_has_a_time_left_of_its_own() -> None:
    phases = Phases(5)
    for began in (0.0, 100.0):  # two searches with parts of the same name
        progress = Progress()
        progress.begin("bootstrap")
        phases.follow(progress)
        assert (phases.look(2, began).what, phases.look(2, began).elapsed_s) == ("bootstrap", 0.0)
        progress.at(0.5)
        assert phases.look(2, began + 10.0).left_s == 10.0
        phases.follow(None)
        del progress
        assert phases.look(3, began + 20.0).what == "rounds"


def test_a_step_of_a_part_has_the_same_end_and_tells_no_share() -> None:
    progress = Progress()
    progress.begin("bootstrap")
    progress.at(0.25)
    step = progress.step()
    step.at(0.9)
    assert progress.done == 0.25
    progress.enough()
    assert step.is_enough
    assert progress.ended_in == "bootstrap"

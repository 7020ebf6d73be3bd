"""What is said of a site that stands out, while the run goes on."""

from fedbnsl.rounds.kinds import KINDS
from fedbnsl_server.algorithm.influence import LIMIT, Influence
from fedbnsl_server.results.outlier_scores import outliers_now
from fedbnsl_server.results.sentences import in_words


def test_only_sites_above_the_limit_are_named_with_where_and_what_to_do() -> None:
    of_round = {"north": Influence(LIMIT), "south": Influence(47.5, (2, 0))}
    (told,) = in_words(outliers_now(of_round, "admm", 3, ["age", "bmi", "crp"])).items()
    assert told[0] == "south"
    assert told[1].startswith("south stands out: its weights of round 3 lie 47.5 times as far")
    assert "most in 'crp', 'age'" in told[1]
    assert told[1].endswith("`fedbnsl coordinator eject` takes it out of the run")


def test_every_kind_of_round_has_words_for_its_numbers() -> None:
    for kind in KINDS:
        told = in_words(outliers_now({"south": Influence(9.0, (0,))}, kind, 1, ["age"]))
        assert " of round 1 lie 9 times as far" in told["south"]

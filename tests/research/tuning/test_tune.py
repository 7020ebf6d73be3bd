"""The tuner: which configurations it runs, how it ranks them, and what it leaves behind."""

import csv
import json
from itertools import product

import numpy as np
import pytest

from command_line import run_command
from fedbnsl.errors import DivergenceError, PlanError
from fedbnsl.plan.plan import Plan
from fedbnsl_research.trials.trials import Outcome
from fedbnsl_research.tuning import ranking, tune
from fedbnsl_research.tuning.grid import Span, configurations, read_grid

SMALL = ["--nodes", 5, "--edges", 4, "--sites", 2, "--rows", 100, "--set", "rounds=4"]


def grid_of(tmp_path, text):
    path = tmp_path / "grid.toml"
    path.write_text(text, encoding="utf-8")
    return path


def plans_of(tmp_path, text, plan=None):
    grid = read_grid(grid_of(tmp_path, text))
    return configurations(plan or Plan(), grid, grid.product())


def test_a_grid_is_the_product_of_its_lists(tmp_path):
    found = plans_of(tmp_path, "rounds = [10, 20]\nl1_weight = [0.1, 0.2, 0.3]")
    assert [(p.rounds, p.l1_weight) for _, p in found] == list(product([10, 20], [0.1, 0.2, 0.3]))


@pytest.mark.parametrize("text", ["privacy.clip = [5, 10]", "[privacy]\nclip = [5, 10]", '"privacy.clip" = [5, 10]'])
def test_a_grid_reaches_into_tables(tmp_path, text):
    base = Plan.load("private-steps")
    found = plans_of(tmp_path, text, base)
    assert [p.privacy.clip for _, p in found] == [5.0, 10.0]
    assert {p.privacy.selection_share for _, p in found} == {base.privacy.selection_share}


def test_two_spellings_of_one_configuration_are_one(tmp_path):
    assert len(plans_of(tmp_path, "l1_weight = [1, 1.0, 2]")) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("l1_wieght = [1]", "did you mean l1_weight"),
        ("privacy.clipp = [1]", "did you mean clip"),
        ("rounds = []", "rounds = \\[\\]: expected at least one"),
        ("rounds = 5", "rounds = 5: expected a list"),
        ("name = ['a']", "name is not tuned"),
        ("n_participants = [3]", "n_participants is not tuned"),
        ("", "names no setting"),
        ("rounds = [", "cannot be read"),
        ("l1_weight = {low = 0.1}", "expected a list, or a range"),
        ("l1_weight = {low = 0.1, high = 1, step = 2}", "expected a list, or a range"),
        ("l1_weight = {low = 0, high = 1, log = true}", "no logarithm"),
        ("l1_weight = {low = 1, high = 1}", "not below"),
        ("l1_weight = {low = 0, high = inf}", "no finite number"),
        ("rounds = {low = 0.5, high = 3, integer = true}", "no whole number"),
        ("l1_weight = {low = 0.1, high = 1}", "draw at random with --random"),
        ("rounds = [1, 2, 0]\nlocal_steps = [1, 0]", "4 of 6 combinations.*the first, rounds = 1, local_steps = 0"),
        ("threshold = [0.3, 0.01]", "1 of 2 combinations(.|\\n)*refit_threshold"),
        ("\n".join(f"{k} = {list(range(1, 50))}" for k in ("rounds", "local_steps", "l1_weight")), "combinations, at"),
    ],
)
def test_a_grid_that_cannot_be_used_is_refused_by_key_and_rule(tmp_path, text, said):
    with pytest.raises(PlanError, match=said):
        plans_of(tmp_path, text)


def test_random_choices_stay_in_their_ranges_and_more_begin_with_the_same(tmp_path):
    text = "l1_weight = {low = 0.001, high = 1, log = true}\nrounds = {low = 2, high = 4, integer = true}\n"
    grid = read_grid(grid_of(tmp_path, text + "threshold = [0.2, 0.3]\nconsensus_penalty = {low = 1, high = 3}"))
    choices = list(grid.sample(300, 7))
    assert list(grid.sample(20, 7)) == choices[:20]
    assert list(grid.sample(20, 8)) != choices[:20]
    assert {c["rounds"] for c in choices} == {2, 3, 4}
    assert {c["threshold"] for c in choices} == {0.2, 0.3}
    assert all(0.001 <= c["l1_weight"] <= 1 and 1 <= c["consensus_penalty"] <= 3 for c in choices)
    # Uniform in the logarithm: a third of the draws for each power of ten.
    assert 70 < sum(c["l1_weight"] < 0.01 for c in choices) < 130


def test_a_logarithmic_range_of_whole_numbers_reaches_both_ends():
    rng = np.random.default_rng(1)
    assert {Span(1, 4, log=True, integer=True).draw(rng) for _ in range(200)} == {1, 2, 3, 4}


def outcome(shd, mb=1.0, *, precision=None, true_edges=4):
    scores = {"shd": shd, "tpr": shd, "precision": precision, "n_reference_edges": true_edges}
    return Outcome({}, ({**scores, "mb": mb, "seconds": 2.0, "error": ""},), "", 1.0)


FAILED = Outcome({}, (), "DataError: no", 1.0)
DIVERGED = Outcome({}, ({"error": "diverged: nan"},), "", 1.0)


def ranked(metric, **outcomes):
    summaries = [ranking.summary({"of": name}, Plan(), group, metric) for name, group in outcomes.items()]
    return [r.choice["of"] for r in ranking.rank(summaries, metric)]


def test_the_best_mean_is_first_then_fewer_megabytes_and_failures_last():
    groups = {
        "dear": [outcome(1, 9.0), outcome(3, 9.0)],
        "cheap": [outcome(2, 1.0), outcome(2, 1.0)],
        "best": [outcome(0), outcome(1)],
        "fails": [outcome(0), DIVERGED],
        "always": [FAILED, DIVERGED],
    }
    assert ranked("shd", **groups) == ["best", "cheap", "dear", "fails", "always"]
    assert ranked("tpr", **groups) == ["cheap", "dear", "best", "fails", "always"]


def test_a_summary_is_mean_deviation_and_worst_of_the_seeds_that_ended_well():
    s = ranking.summary({}, Plan(), [outcome(1, 2.0), outcome(4, 4.0), DIVERGED], "shd")
    assert (s.mean, s.worst, s.seeds, s.failures, s.mb, s.error) == (2.5, 4, 3, 1, 3.0, "diverged: nan")
    assert s.std == pytest.approx(np.std([1, 4], ddof=1))
    assert ranking.summary({}, Plan(), [outcome(1), outcome(4)], "tpr").worst == 1


def test_a_metric_that_is_not_defined_on_a_seed_is_in_no_mean_and_is_counted():
    empty_truth, empty_estimate = outcome(0, true_edges=0), outcome(4)
    s = ranking.summary({}, Plan(), [outcome(1, precision=0.5), empty_truth, empty_estimate], "precision")
    assert (s.mean, s.std, s.worst, s.seeds, s.undefined, s.empty, s.failures) == (0.5, None, 0.5, 3, 2, 1, 0)
    none = ranking.summary({}, Plan(), [empty_truth], "precision")
    assert (none.mean, none.worst, none.undefined, none.empty) == (None, None, 1, 0)


def test_no_edge_where_there_is_none_costs_no_rank_and_no_edge_where_there_are_some_does():
    groups = {
        "nothing": [outcome(4), outcome(4)],
        "once": [outcome(4), outcome(0, precision=1.0)],
        "fails": [outcome(0, precision=1.0), DIVERGED],
        "wrong": [outcome(1, precision=0.0, true_edges=0), outcome(1, precision=0.8)],
        "right": [outcome(0, true_edges=0), outcome(1, precision=0.8)],
    }
    assert ranked("precision", **groups) == ["right", "wrong", "once", "fails", "nothing"]


def test_a_search_without_a_single_score_says_so(capsys, tmp_path):
    grid = grid_of(tmp_path, "l1_weight = [50.0]")
    command = ["tune", "fed-sparse", "--grid", grid, *SMALL, "--seeds", "100", "--metric", "precision"]
    ended = run_command(capsys, *command, "--out", tmp_path / "o")
    assert ended.code == 9
    assert "no run has a precision" in ended.err
    assert read_csv(tmp_path / "o" / "ranking.csv")[0]["undefined"] == "1"


def test_another_default_is_another_trial_and_another_name_is_not():
    class Later(Plan):
        global_iterations: int = 21

    data = tune.GeneratedData(5, 4, 2, 100, 0.0)
    before = tune.trial_of(Plan(), data, 100)
    assert tune.trial_of(Plan(name="x"), data, 100) == before
    after = tune.trial_of(Later(), data, 100)
    assert {key for key in before if before[key] != after[key]} == {"digest"}


def read_csv(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_search_leaves_its_trials_a_ranking_and_a_plan_and_a_larger_one_reuses_them(capsys, tmp_path):
    out = tmp_path / "out"
    grid = grid_of(tmp_path, "l1_weight = [0.05, 50.0]")
    command = ["tune", "fed-sparse", "--grid", grid, *SMALL, "--seeds", "100,101", "--out", out]
    ended = run_command(capsys, *command, "--json")
    assert ended.code == 0
    printed = json.loads(ended.out)
    assert [r["l1_weight"] for r in printed["ranking"]] == [0.05, 50.0]
    assert printed["warnings"] == []
    trials = read_csv(out / "trials.csv")
    assert [(t["l1_weight"], t["seed"]) for t in trials] == [
        ("0.05", "100"),
        ("0.05", "101"),
        ("50.0", "100"),
        ("50.0", "101"),
    ]
    first = read_csv(out / "ranking.csv")[0]
    assert float(first["mean"]) == np.mean([int(t["shd"]) for t in trials[:2]])
    best = Plan.load(out / "best.toml")
    assert best.name == "fed-sparse-tuned"
    assert (best.l1_weight, best.rounds, best.n_participants) == (0.05, 4, 2)
    text = (out / "best.toml").read_text()
    assert "# command: fedbnsl tune" in text
    assert "seeds: 100, 101" in text
    assert "held out" not in text

    before = (out / "trials.jsonl").read_bytes()
    grid_of(tmp_path, "threshold = [0.3]\nl1_weight = [0.05, 50.0, 0.1]")  # 0.3 is the plan's own
    assert run_command(capsys, *command).code == 0
    after = (out / "trials.jsonl").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == before.count(b"\n") + 2


def test_seeds_of_the_papers_evaluation_are_no_longer_held_out(capsys, tmp_path):
    grid = grid_of(tmp_path, "l1_weight = [0.1]")
    ended = run_command(
        capsys, "tune", "fed-sparse", "--grid", grid, *SMALL, "--seeds", "1..3", "--out", tmp_path / "o"
    )
    assert ended.code == 0
    assert "seeds 2, 3" in ended.err
    assert "no longer held out" in ended.err
    assert "no longer held out" in (tmp_path / "o" / "best.toml").read_text()


def test_a_divergence_is_ranked_last_with_its_reason_and_not_tried_again(capsys, tmp_path, monkeypatch):
    simulate, calls = tune.simulate, []

    def diverging(plan, *rest, **options):
        calls.append(plan.l1_weight)
        if plan.l1_weight == 7:
            raise DivergenceError("not finite")
        return simulate(plan, *rest, **options)

    monkeypatch.setattr(tune, "simulate", diverging)
    grid = grid_of(tmp_path, "l1_weight = [7.0, 0.1]")
    command = ["tune", "fed-sparse", "--grid", grid, *SMALL, "--seeds", "100", "--out", tmp_path / "o"]
    for _ in range(2):
        ended = run_command(capsys, *command)
        assert ended.code == 0
        assert "diverged: not finite" in ended.out
    assert calls == [7.0, 0.1]
    assert [r["l1_weight"] for r in read_csv(tmp_path / "o" / "ranking.csv")] == ["0.1", "7.0"]

    grid_of(tmp_path, "l1_weight = [7.0]")
    ended = run_command(capsys, *command)
    assert ended.code == 9
    assert "not finite" in ended.err


def test_given_tables_are_searched_and_a_changed_table_is_other_data(capsys, tmp_path):
    data, out = tmp_path / "data", tmp_path / "o"
    assert run_command(capsys, "data", "synth", *SMALL[:8], "--seed", 100, "--out", data).code == 0
    grid = grid_of(tmp_path, "l1_weight = [0.1]")
    command = ["tune", "fed-sparse", "--grid", grid, "--set", "rounds=4", "--data", data, "--out", out]
    assert run_command(capsys, *command).code == 0
    generated = ["tune", "fed-sparse", "--grid", grid, *SMALL, "--seeds", "100", "--out", tmp_path / "g"]
    assert run_command(capsys, *generated).code == 0
    of_folder, of_seed = (read_csv(tmp_path / name / "trials.csv")[0] for name in ("o", "g"))
    assert {k: v for k, v in of_folder.items() if k not in ("seed", "seconds")} == {
        k: v for k, v in of_seed.items() if k not in ("seed", "seconds")
    }
    (data / "site-1.csv").write_text((data / "site-2.csv").read_text())
    assert run_command(capsys, *command).code == 0
    assert (out / "trials.jsonl").read_bytes().count(b"\n") == 3  # version, before, after


@pytest.mark.long
def test_a_private_search_repeats_its_noise_and_needs_public_tables(capsys, tmp_path):
    data = tmp_path / "data"
    assert run_command(capsys, "data", "synth", *SMALL[:8], "--out", data).code == 0
    grid = grid_of(tmp_path, "privacy.clip = [5.0, 20.0]")
    command = ["tune", "private-steps", "--grid", grid, "--set", "rounds=3"]
    refused = run_command(capsys, *command, "--data", data, "--out", tmp_path / "r")
    assert refused.code == 2
    assert "--public-data" in refused.err
    rows = []
    for name in "ab":
        ended = run_command(capsys, *command, *SMALL[:8], "--seeds", "100,101", "--out", tmp_path / name)
        assert ended.code == 0
        rows.append([{**r, "seconds": ""} for r in read_csv(tmp_path / name / "trials.csv")])
    assert rows[0] == rows[1]
    ended = run_command(capsys, *command, "--data", data, "--public-data", "--seeds", "1,2", "--out", tmp_path / "p")
    assert ended.code == 0
    assert [r["seed"] for r in read_csv(tmp_path / "p" / "trials.csv")] == ["1", "2", "1", "2"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--metric", "auc"], "choose from"),
        (["--search-seed", 3], "--random"),
        (["--scheduler", "tcp://h:1"], "--backend dask"),
        (["--truth", "t.csv"], "--data"),
        (["--nodes", 3, "--edges", 9], "at most 3 edges"),
        (["--jobs", 0, "--nodes", 4, "--edges", 2], "--jobs 0"),
        (["--data", ".", "--nodes", 4], "--nodes"),
        (["--data", ".", "--seeds", "1"], "draws nothing"),
        (["--data", ".", "--metric", "shd"], "to score against"),
    ],
)
def test_options_that_contradict_each_other_are_refused(capsys, tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    grid = grid_of(tmp_path, "l1_weight = [0.1]")
    ended = run_command(capsys, "tune", "fed-sparse", "--grid", grid, "--out", tmp_path / "o", *options)
    assert ended.code == 2
    assert said in ended.err


def test_the_example_grid_fits_the_default_plan():
    grid = read_grid("example")
    assert len(configurations(Plan.load("fed-sparse"), grid, grid.product())) == 18

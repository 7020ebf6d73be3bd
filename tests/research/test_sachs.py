"""The Sachs data and the study on them: on a small folder in the same format everywhere, on the data where they are."""

import csv
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fedbnsl.errors import ResultError
from fedbnsl_research.reproduce import sachs as study_module
from fedbnsl_research.reproduce import sachs_methods
from fedbnsl_research.reproduce.sachs import STUDY
from fedbnsl_research.reproduce.sachs_tables import sachs_tables
from fedbnsl_research.reproduce.study import reproduce
from fedbnsl_research.tables.sachs import deal, federate, read_sachs, sachs_folder
from fedbnsl_workbench.tables.synthetic import synthesise


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder as that of the data: 92 rows of 4 positive columns, three edge lists, one of them cyclic."""
    folder = tmp_path / "data" / "sachs"
    folder.mkdir(parents=True)
    drawn = synthesise(4, 4, 1, 92, 3)
    rows = [",".join(drawn.variables), *(",".join(map(repr, row)) for row in np.exp(0.2 * drawn.tables[0]).tolist())]
    (folder / "sachs.csv").write_text("\n".join(rows), encoding="utf-8")
    for name, edges in (("17-bnlearn", "X1,X2"), ("18-cdt", "X1,X2\nX2,X3\nX3,X1"), ("20-cmuphil", "X1,X3\nX2,X3")):
        (folder / f"edges-{name}.csv").write_text(f"source,target\n{edges}\n", encoding="utf-8")
    monkeypatch.setenv("FEDBNSL_DATA", str(folder.parent))
    return folder


@pytest.mark.parametrize("root", [None, "", "/nowhere"])
def test_missing_data_are_asked_for_by_the_variable_that_names_them(root, monkeypatch):
    if root is None:
        monkeypatch.delenv("FEDBNSL_DATA", raising=False)
    else:
        monkeypatch.setenv("FEDBNSL_DATA", root)
    with pytest.raises(ResultError, match="FEDBNSL_DATA") as caught:
        STUDY.trials((2, 3), True)
    assert "sachs.csv" in caught.value.remedy
    assert "edges-" in caught.value.remedy


def test_the_folder_is_read_as_it_stands(small):
    assert sachs_folder() == small
    data = read_sachs()
    with (small / "sachs.csv").open(encoding="utf-8") as file:
        first = next(csv.DictReader(file))
    assert dict(zip(data.variables, data.X[0], strict=True)) == {name: float(x) for name, x in first.items()}
    assert data.X.shape == (92, 4)
    assert list(data.references) == ["17-bnlearn", "18-cdt", "20-cmuphil"]
    assert np.argwhere(data.references["20-cmuphil"]).tolist() == [[0, 2], [1, 2]]


@pytest.mark.parametrize("text", ["X1,X2\n1,2\n3\n", "X1,X2\n1,x\n", "X1,X2\n1,inf\n", "", "X1,X2\n"])
def test_a_table_that_is_none_is_refused(small, text):
    (small / "sachs.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ResultError, match=r"sachs\.csv"):
        read_sachs()


def test_without_an_edge_list_there_is_nothing_to_score_against(small):
    for path in small.glob("edges-*.csv"):
        path.unlink()
    with pytest.raises(ResultError, match="edges-"):
        read_sachs()


def test_a_contiguous_split_is_the_file_in_order_and_leaves_out_its_last_rows():
    X = np.arange(11.0)[:, None]
    assert [part.ravel().tolist() for part in deal(X, 3, seed=None)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_shuffled_split_deals_every_row_at_most_once_and_by_its_seed_alone():
    X = np.arange(11.0)[:, None]
    dealt = [np.concatenate(deal(X, 3, seed=seed)).ravel().tolist() for seed in (4, 4, 5)]
    assert dealt[0] == dealt[1] != dealt[2]
    assert len(set(dealt[0])) == 9
    assert dealt[0] != sorted(dealt[0])


def test_each_site_changes_its_scale_by_itself(small):
    data = read_sachs()
    raw = federate(data, seed=None)
    for how in ("raw", "centred", "standardised", "log"):
        for own, before in zip(federate(data, seed=None, transform=how).tables, raw.tables, strict=True):
            for column, given in zip(own.T.tolist(), before.T.tolist(), strict=True):
                values = np.log(given) if how == "log" else np.array(given)
                shift = 0 if how == "raw" else sum(values) / len(values)
                unit = 1
                if how == "standardised":
                    unit = (sum((values - shift) ** 2) / len(values)) ** 0.5
                assert column == pytest.approx(((values - shift) / unit).tolist())


def test_every_method_has_a_plan_of_its_own_and_the_paper_s_settings_are_those_it_prints():
    plans = {name: each.plan for name, each in sachs_methods.FEDERATED.items()}
    sparse, dense = plans[sachs_methods.SPARSE], plans[sachs_methods.DENSE]
    assert (sparse.acyclicity_penalty, sparse.consensus_penalty, sparse.l1_weight) == (10000, 5, 1)
    assert (sparse.step_size, sparse.threshold, sparse.acyclicity_growth) == (0.1, 0.1, 1)
    assert (dense.acyclicity_penalty, dense.consensus_penalty, dense.l1_weight, dense.threshold) == (1e5, 10, 0.1, 0.1)
    private, noisy = plans[sachs_methods.DP_SPARSE], plans[sachs_methods.DP_DENSE]
    assert (private.privacy.epsilon, private.privacy.clip, private.rounds, private.local_steps) == (5, 15000, 30, 30)
    assert (private.l1_weight, private.step_size, private.threshold) == (1, 0.1, 0)
    assert (noisy.privacy.epsilon, noisy.privacy.row_norm_bound, noisy.rounds, noisy.threshold) == (5, 4, 100, 0.1)
    assert len({plan.digest() for plan in plans.values()}) == len(plans) - 2, "three share fed-sparse"


def test_the_contiguous_split_is_run_once_where_no_noise_differs(small):
    trials = [trial for trial in STUDY.trials((2, 3, 4), False) if trial["part"] == "federated"]
    repeats = {
        (method, split): [t["seed"] for t in trials if (t["method"], t["split"]) == (method, split)]
        for method, split in itertools.product(sachs_methods.FEDERATED, ("shuffled", "contiguous"))
    }
    for (method, split), seeds in repeats.items():
        assert seeds == ([2] if split == "contiguous" and not method.startswith("DP-") else [2, 3, 4]), method


def test_other_data_settings_or_columns_are_other_trials(small, monkeypatch):
    def keys():
        return {json.dumps(trial, sort_keys=True) for trial in STUDY.trials((2, 3), False)}

    def of_method(name):
        return {key for key in keys() if json.loads(key).get("method") == name}

    before, notears, default = keys(), of_method(sachs_methods.NOTEARS), "Fed-Sparse-BNSL, fed-sparse"
    own = of_method(default)
    assert len(before) == len(STUDY.trials((2, 3), False))
    lists = small / "edges-18-cdt.csv"
    kept = lists.read_text()
    lists.write_text(kept.replace("X3,X1", "X1,X3"))
    assert not before & keys()
    lists.write_text(kept)
    assert keys() == before
    each = sachs_methods.FEDERATED[default]
    for change in ({"settings": {"threshold": 0.2}}, {"transform": "log"}):
        with monkeypatch.context() as patch:
            patch.setattr(study_module, "FEDERATED", {**sachs_methods.FEDERATED, default: replace(each, **change)})
            assert before & keys() == before - own
    central = sachs_methods.central_methods()
    changed = replace(central[sachs_methods.NOTEARS], settings={"l1_weight": 0.2, "threshold": 0.3})
    monkeypatch.setattr(study_module, "central_methods", lambda: {**central, sachs_methods.NOTEARS: changed})
    assert before & keys() == before - notears


def test_a_row_stands_beside_the_empty_graph_and_chance(small):
    data = read_sachs()
    edges = np.zeros((4, 4), dtype=bool)
    edges[1, 0] = edges[1, 2] = True  # against the cycle X1 X2 X3: one reversed, one right, X3 -> X1 missing
    rows = {row["reference"]: row for row in study_module._scored(edges, data)}
    cyclic = rows["18-cdt"]
    assert (cyclic["edges"], cyclic["true_edges"], cyclic["shd"], cyclic["skeleton_hits"]) == (2, 3, 2, 2)
    assert cyclic["empty_shd"] == 3
    # Two of the six pairs by chance, three of which are in the skeleton: one hit on average.
    assert cyclic["random_hits"] == pytest.approx(1.0, abs=0.15)
    assert rows["17-bnlearn"]["empty_shd"] == 1


def test_the_sensitivity_table_counts_the_cells_that_equal_the_paper():
    def row(steps, rounds, edges, shd, hits):
        return {
            "part": "sensitivity", "method": "M, paper's settings", "local_steps": steps, "transform": "raw",
            "split": "contiguous", "rounds": rounds, "edges": edges, "shd": shd, "skeleton_hits": hits,
        }  # fmt: skip

    scored = {
        "part": "central", "method": "A", "split": "pooled", "reference": "r", "edges": 1, "true_edges": 2, "shd": 2,
        "empty_shd": 2, "skeleton_hits": 0, "v_structures_common": 0, "v_structures_true": 0, "random_shd": 2.5,
        "random_shd_std": 0.5, "random_hits": 0.5, "random_hits_std": 0.5,
    }  # fmt: skip
    data = {
        "part": "data", "reference": "r", "transform": "raw", "variance_ratio": 2.0, "site_ratio_shuffled": 1.0,
        "site_ratio_contiguous": 3.0, "varsortability": 0.5,
    }  # fmt: skip
    rows = [row(10, 20, 18, 20, 12), row(10, 30, 19, 21, 12), row(0, 20, 18, 20, 12), row(0, 30, 5, 5, 5), scored, data]
    _, sensitivity, _ = sachs_tables(rows, "r", {"edges": 18, "shd": 20, "skeleton_hits": 12})
    assert "Of 2 cells" in sensitivity.note, "a closed form has no local steps, and is not Fed-Sparse-BNSL"
    assert "1 has exactly these numbers (contiguous, raw, K=10, T=20)" in sensitivity.note
    assert "2 are within one of each" in sensitivity.note
    assert [list(cells[4:]) for cells in sensitivity.rows] == [
        ["18 / 20 / 12", "19 / 21 / 12"],
        ["18 / 20 / 12", "5 / 5 / 5"],
    ]


@pytest.mark.long
def test_the_study_writes_its_folder_from_a_folder_in_this_format(small, tmp_path, monkeypatch):
    few = {
        name: replace(each, settings={**each.settings, "rounds": 3})
        for name, each in sachs_methods.FEDERATED.items()
        if name in (sachs_methods.SPARSE, sachs_methods.DENSE, sachs_methods.DP_DENSE)
    }
    central = sachs_methods.central_methods()
    for module in (study_module, sachs_methods):
        monkeypatch.setattr(module, "FEDERATED", few)
    monkeypatch.setattr(
        study_module, "central_methods", lambda: {sachs_methods.NOTEARS: central[sachs_methods.NOTEARS]}
    )
    monkeypatch.setattr(study_module, "_QUICK_ROUNDS", (1, 3))
    monkeypatch.setattr(study_module, "PAPER", {sachs_methods.SPARSE: study_module.PAPER[sachs_methods.SPARSE]})
    kept = [
        trial
        for trial in STUDY.trials((2, 3), True)
        if trial["part"] != "sensitivity" or trial["method"] == sachs_methods.SPARSE
    ]
    study = replace(STUDY, trials=lambda seeds, quick: kept)
    out = tmp_path / "out"
    comparisons = reproduce(study, (2, 3), out, quick=True, jobs=1, console=Console(quiet=True))
    assert comparisons[0].ours == 3, "the empty graph against three edges"
    assert json.dumps([c.difference for c in comparisons], allow_nan=False)
    page = (out / "index.html").read_text(encoding="utf-8")
    for said in ("empty graph", "random hits", "Nothing here is a success", "A caution about scales", "1 rounds"):
        assert said in page
    assert (out / "sachs.png").stat().st_size > 10_000


def test_the_real_data_are_those_that_the_paper_describes(sachs):
    data = read_sachs()
    assert data.X.shape == (7466, 11)
    assert {name: int(edges.sum()) for name, edges in data.references.items()} == {
        "17-bnlearn": 17, "18-cdt": 18, "20-cmuphil": 20,
    }  # fmt: skip
    assert [len(table) for table in federate(data, seed=2).tables] == [2488] * 3
    assert data.X.min(axis=0).tolist() == [1.0] * 11

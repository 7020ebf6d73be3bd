"""Accuracy and bytes of whole runs without privacy: on generated graphs, and on the Sachs data."""

from collections.abc import Iterator, Mapping

from fedbnsl.plan.plan import Plan
from fedbnsl_research.bench.generated import Generated
from fedbnsl_research.tables.sachs import federate, read_sachs
from fedbnsl_research.trials.harness import Row, by_seed, mean_of, megabytes_sent, run_plan
from fedbnsl_workbench.scoring.evaluation import learned_graph
from fedbnsl_workbench.scoring.metrics import empty_graph_scores, random_dag_scores, score

# Label and data of the rows, by plan. No plan was tuned on these graphs (fed-sparse: seeds 100 and up).
EVALUATED: Mapping[str, tuple[tuple[str, Generated], ...]] = {
    "fed-sparse": (
        ("homogeneous, fed-sparse", Generated(20, range(2, 12))),
        ("homogeneous, fed-sparse", Generated(100, range(2, 6))),
        ("homogeneous, fed-sparse", Generated(200, range(2, 4))),
        ("heterogeneous 0.1, fed-sparse", Generated(20, range(2, 7), n_sites=5, variance=0.1)),
    ),
    "paper-homogeneous": (("homogeneous, paper-homogeneous plan", Generated(20, range(2, 12))),),
}


def accuracy() -> Iterator[Row]:
    """SHD and bytes on generated data, by setting."""
    for name, figures in EVALUATED.items():
        for label, data in figures:
            (rows,) = data.rows(Plan.load(name))
            yield {
                "figure": label,
                "d": data.d,
                "P": data.n_sites,
                "seeds": data.seed_range,
                "mean SHD": mean_of(rows, "shd"),
                "SHD by seed": by_seed(rows, "shd"),
                "MB formula": mean_of(rows, "mb_formula"),
                "MB serialised": mean_of(rows, "mb_serialised"),
                "s a run": mean_of(rows, "seconds"),
            }


def sachs() -> Iterator[Row]:
    """The Sachs data over three sites, shuffled and contiguous, against the three edge lists, with the controls.

    Raises
    ------
    ResultError
        If FEDBNSL_DATA does not name a folder with sachs/.
    """
    data = read_sachs()
    plan = Plan.load("paper-sachs")
    for name, seed in (("shuffled (seed 0)", 0), ("contiguous", None)):
        result = run_plan(plan, federate(data, seed=seed))
        edges = learned_graph(result)
        for reference_name, reference in data.references.items():
            scores = score(edges, reference)
            chance = random_dag_scores(reference, scores.n_edges)
            yield {
                "figure": f"Sachs, {name}",
                "reference": reference_name,
                "edges": scores.n_edges,
                "SHD": scores.shd,
                "SHD empty": empty_graph_scores(reference).shd,
                "SHD random": f"{chance['mean']['shd']:.1f} +- {chance['std']['shd']:.1f}",
                "skeleton hits": scores.skeleton_hits,
                "hits random": f"{chance['mean']['skeleton_hits']:.1f}",
                "v-structures in common": f"{scores.v_structures_common} of {scores.v_structures_reference}",
                "MB formula": round(megabytes_sent(result, "formula"), 2),
                "h(W) at the end": f"{result['acyclicity']:.1e}",
            }

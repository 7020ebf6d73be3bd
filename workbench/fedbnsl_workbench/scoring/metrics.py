"""How near a learned graph is to a reference graph, and how near the empty graph and chance would be.

Graphs are boolean (d, d) arrays without diagonal, edges[i, j] for i -> j. The reference may be cyclic, and even hold
both i -> j and j -> i (a 2-cycle): these are two edges of one adjacent pair. There, NOTEARS' own code, which compares
pairs, counts no error for an estimated i -> j. Here j -> i is missing: SHD is always the least number of edges to add,
remove or reverse, and the empty graph's SHD is the number of reference edges. Without 2-cycles both agree.
"""

from dataclasses import asdict, dataclass

import numpy as np

from fedbnsl.protocol.sparse import Mask
from fedbnsl_workbench.scoring.structural_intervention import sid as sid


@dataclass(frozen=True)
class Scores:
    """An estimated graph against a reference graph; ratios are in [0, 1].

    `fdr` and `tpr` are NOTEARS' quotients, whose denominator is at least 1: they are 0 when there is nothing to divide
    by. Every other ratio is None when its denominator is 0. A 2-cycle is two edges.
    """

    n_edges: int
    n_reference_edges: int
    missing: int  # reference edges to add to the estimate, without the reversed ones
    extra: int  # estimated edges to remove, without the reversed ones
    reversed: int  # estimated i -> j where the reference has only j -> i, and the estimate only i -> j
    shd: int  # missing + extra + reversed
    shd_double: int  # missing + extra + 2 reversed: the entries in which the two arrays differ
    tpr: float  # correct edges / max(reference edges, 1)
    fdr: float  # (reversed + extra) / max(estimated edges, 1)
    precision: float | None  # correct edges / estimated edges
    # 2 correct / (estimated + reference edges): 0 for an empty estimate of some edges, None only if both are empty.
    f1: float | None
    skeleton_hits: int  # pairs adjacent in both graphs, whatever the direction
    skeleton_precision: float | None  # skeleton_hits / adjacent pairs of the estimate
    skeleton_recall: float | None  # skeleton_hits / adjacent pairs of the reference
    skeleton_f1: float | None  # 2 skeleton_hits / (adjacent pairs of the estimate + those of the reference)
    # Unshielded colliders a -> c <- b, a and b not adjacent. An edge of a 2-cycle counts as any other.
    v_structures_reference: int
    v_structures_estimated: int
    v_structures_common: int  # the same a -> c <- b, unshielded in both graphs

    @property
    def recall(self) -> float:
        """Another name of `tpr`."""
        return self.tpr

    def as_dict(self) -> dict[str, float | None]:
        """Every score by name, `recall` included; ready for JSON, where None is null."""
        return {**asdict(self), "recall": self.recall}


def score(estimate: Mask, reference: Mask) -> Scores:
    """Compare two (d, d) graphs over the same variables."""
    lacking, needless, correct = reference & ~estimate, estimate & ~reference, estimate & reference
    n_lacking, n_needless, n_correct = _count(lacking), _count(needless), _count(correct)
    n_reversed = _count(needless & lacking.T)
    n_edges, n_reference_edges = n_correct + n_needless, n_correct + n_lacking
    adjacent, reference_adjacent = estimate | estimate.T, reference | reference.T
    # These two are symmetric: every pair is in them twice.
    n_pairs, n_reference_pairs = _count(adjacent) // 2, _count(reference_adjacent) // 2
    skeleton_hits = _count(adjacent & reference_adjacent) // 2
    return Scores(
        n_edges=n_edges,
        n_reference_edges=n_reference_edges,
        missing=n_lacking - n_reversed,
        extra=n_needless - n_reversed,
        reversed=n_reversed,
        shd=n_lacking + n_needless - n_reversed,
        shd_double=n_lacking + n_needless,
        tpr=n_correct / max(n_reference_edges, 1),
        fdr=n_needless / max(n_edges, 1),
        precision=_ratio(n_correct, n_edges),
        f1=_ratio(2 * n_correct, n_edges + n_reference_edges),
        skeleton_hits=skeleton_hits,
        skeleton_precision=_ratio(skeleton_hits, n_pairs),
        skeleton_recall=_ratio(skeleton_hits, n_reference_pairs),
        skeleton_f1=_ratio(2 * skeleton_hits, n_pairs + n_reference_pairs),
        v_structures_reference=_count_v_structures(reference, reference_adjacent),
        v_structures_estimated=_count_v_structures(estimate, adjacent),
        v_structures_common=_count_v_structures(correct, adjacent | reference_adjacent),
    )


def _count(entries: Mask) -> int:
    return int(np.count_nonzero(entries))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _count_v_structures(edges: Mask, adjacent: Mask) -> int:
    """Colliders a -> c <- b, a < b, by `edges`, whose a and b are not `adjacent`."""
    E = edges.astype(np.float32)
    # Entry (a, b) counts the common children of a and b: exact in float32 up to 2^24 of them.
    common_children = E @ E.T
    return int(common_children[np.triu(~adjacent, k=1)].sum(dtype=np.float64))


def empty_graph_scores(reference: Mask) -> Scores:
    """Scores of the graph without edges: what learning nothing reaches."""
    return score(np.zeros_like(reference), reference)


def random_dag(n_variables: int, n_edges: int, rng: np.random.Generator) -> Mask:
    """(d, d) DAG with exactly this number of edges: a uniform order, and a uniform choice of its forward pairs."""
    n_pairs = n_variables * (n_variables - 1) // 2
    if not 0 <= n_edges <= n_pairs:
        raise ValueError(f"a DAG over {n_variables} variables has 0 to {n_pairs} edges, not {n_edges}")
    order = rng.permutation(n_variables)
    earlier, later = np.triu_indices(n_variables, k=1)
    chosen = rng.choice(n_pairs, size=n_edges, replace=False, shuffle=False)
    edges = np.zeros((n_variables, n_variables), dtype=bool)
    edges[order[earlier[chosen]], order[later[chosen]]] = True
    return edges


def random_dag_scores(
    reference: Mask, n_edges: int, *, n_draws: int = 1000, seed: int = 0
) -> dict[str, dict[str, float | None]]:
    """Scores of random DAGs: what chance reaches with as many edges.

    `mean` and `std` (of a sample: n - 1) of each of `Scores.as_dict()`. Both are None where the score is None, which
    depends only on the numbers of edges; `std` is also None for a single draw. ValueError: no DAG has `n_edges` edges.
    """
    rng = np.random.default_rng(seed)
    draws = [score(random_dag(reference.shape[0], n_edges, rng), reference).as_dict() for _ in range(n_draws)]
    mean: dict[str, float | None] = {}
    std: dict[str, float | None] = {}
    for name in draws[0]:
        values = [value for draw in draws if (value := draw[name]) is not None]
        mean[name] = float(np.mean(values)) if values else None
        std[name] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": mean, "std": std}

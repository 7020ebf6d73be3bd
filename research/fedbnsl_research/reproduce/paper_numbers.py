"""Numbers of the paper that more than one study shows."""

from collections.abc import Mapping

SPARSE, CLOSED = "Fed-Sparse-BNSL", "Fed-BNSL"
"""The paper's names of its method and of the one before."""

TABLE_1: Mapping[tuple[str, int], Mapping[str, tuple[float, float]]] = {
    (SPARSE, 20): {"mb_formula": (1.99, 0.28), "shd": (2.2, 1.81), "tpr": (0.93, 0.048), "fdr": (0.057, 0.078)},
    (CLOSED, 20): {"mb_formula": (5.12, 0.0), "shd": (2.9, 4.483), "tpr": (0.95, 0.033), "fdr": (0.086, 0.145)},
    (SPARSE, 200): {"mb_formula": (13.7, 0.8), "shd": (27.4, 14.516), "tpr": (0.922, 0.03), "fdr": (0.084, 0.05)},
    (CLOSED, 200): {"mb_formula": (512.0, 0.0), "shd": (50.7, 12.859), "tpr": (0.934, 0.007), "fdr": (0.19, 0.045)},
}
"""Table 1: mean and standard deviation of MB, SHD, TPR and FDR under their columns' names, by method and d."""


def saved_megabytes(d: int) -> float:
    """Percent of Fed-BNSL's mean MB that Fed-Sparse-BNSL saves, by Table 1."""
    return 100.0 * (1.0 - TABLE_1[SPARSE, d]["mb_formula"][0] / TABLE_1[CLOSED, d]["mb_formula"][0])

"""How near a learned graph is to the truth.

`metrics` counts edges (SHD, TPR, FDR and the rest) and reads reference graphs, `structural_intervention` is the SID,
and `evaluation` scores a run folder beside the empty graph and chance, for `fedbnsl evaluate`.
"""

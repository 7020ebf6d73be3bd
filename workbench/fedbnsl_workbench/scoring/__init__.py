"""How near a learned graph is to the truth.

`reference` reads the truth, `metrics` counts edges (SHD, TPR, FDR and the rest), `structural_intervention` is the SID,
`class_scores` compares what two graphs stand for where the data tell their Markov equivalence classes alone, and
`evaluation` scores a run folder beside the empty graph and chance, for `fedbnsl evaluate`.
"""

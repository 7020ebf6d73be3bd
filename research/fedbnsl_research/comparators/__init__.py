"""Methods that are not federated, to compare with: they see all rows in one place, or one site by itself.

`notears`, `dagma_adapter` and `orderings` find weights; `pooled` lists them with their settings, and runs them on the
rows of all sites together. `flop_adapter` and `causal_learn_adapter` find Markov equivalence classes; `class_searches`
lists them.
"""

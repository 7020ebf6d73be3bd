"""The search for the DAG of least score, from second moments that the sites sent.

`families` scores a child with its parents, `hill_climb` takes the best moves until none is left, `graph_search` runs
it from several starts; `pooled_moments` prepares noisy moments of private rounds for it. `steps_search` searches the
DAG that explains all released private steps. `effects` says what one variable of a learned network does to another.
`kernels` has the
compiled loops. Pure mathematics.
"""

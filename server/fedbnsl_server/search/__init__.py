"""The search for the DAG of least score, from second moments that the sites sent. Pure mathematics.

`score` says what a family adds to a score, `space` what a DAG may be. `order_search` and `class_search` find a class of
least BIC; `graph_search` a DAG with a prior for equal noise variances, by `hill_climb` from several starts. `kernels`
has the compiled loops, `private` the searches in noisy releases.
"""

"""The loops of the search, compiled.

`family` has regressions of one variable on others, by Cholesky factors; `change` what adding or dropping an edge would
change; on these work `hill_climb` and `start`. `order_search` uses `grow_shrink` and `order_state`. `sparse_products`
multiplies; `score` says what all of them lower. Of the same names one room up: what calls them, and what the arrays
mean. Values that loops are given may be declared there; nothing else is imported from it.
"""

"""The loops of the search, compiled.

`family` has regressions of one variable on others, by Cholesky factors; `change` what adding or dropping an edge would
change; on these work `hill_climb` and `start`. `order_search` uses `grow_shrink` and `order_state`. `sparse_products`
multiplies. Of the same names one room up: what calls them, and what the arrays mean. Nothing else is imported from
there.
"""

"""Many independent trials: in parallel, kept one by one, continued where they stopped.

`trials` runs them, `store` keeps the outcomes, `workers` spreads them over processes or Dask, `harness` is one plan
on one federation and its row of numbers.
"""

"""Run many independent trials in parallel, store each outcome, and continue after an interruption.

`trials` runs them, `store` keeps the outcomes, `workers` spreads them over processes or Dask, `harness` is one plan
on one federation and its row of numbers.
"""

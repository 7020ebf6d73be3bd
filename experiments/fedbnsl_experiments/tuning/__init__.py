"""The search for the settings of a plan, on data whose truth is known.

`grid` reads the candidates, `tune` runs them over several seeds, `ranking` orders them, and `display` and `cli` are the
command `fedbnsl tune`.
"""

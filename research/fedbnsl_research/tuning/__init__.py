"""The search for the settings of a plan, on data whose truth is known or by sites that are left out.

`grid` reads the candidates, `tune` runs them over several seeds, `held_out` scores them where there is no truth,
`ranking` orders them, and `display` and `cli` are the command `fedbnsl tune`.
"""

"""How a site answers each kind of round, one module for each.

`kinds` has what they share: the local problem, with the private table, and what every kind can do. `participant` calls
them; what both sides know of a kind is in `fedbnsl.rounds`.
"""

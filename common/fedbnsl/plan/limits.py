"""How large and how small the numbers of a table may be: one limit for dictionaries, tables and messages.

Squares, and their products with each other, then stay far from the ends of floating point, and whole numbers within the
limit are exact. A table is checked at its site, so that no honest site sends what the coordinator would refuse.
"""

LARGEST_VALUE = 1e15
"""Of a value of a column, after factor and transform."""

LEAST_SPREAD = 1e-13
"""Of a column's standard deviation; with less, its values count as one."""

MOST_REGRESSION_NUMBERS = 250_000
"""Of an answer in a round of regressions: 2 MB."""

MOST_HINGE_NUMBERS = 180_300
"""Of an answer in a round of hinges: 600 columns, hinges included."""

MOST_CURVATURE_NUMBERS = 30_000
"""Of an answer in a round that looks for curves: ten a pair."""

MOST_NOISE_NUMBERS = 30_000
"""Of an answer in a round that looks at the shape of noise: 21 a pair."""

MOST_VALIDATION_NUMBERS = 1_500_000
"""Of an answer in a round that scores the network: about 500 a variable with levels."""

LARGEST_SQUARE = LARGEST_VALUE**2

LEAST_SQUARE = LEAST_SPREAD**2 / 2.0
"""Of a mean square, with room for rounding."""

MOST_CELLS = 5_000
"""Of a contingency table that a site is asked for: larger ones never are."""

MOST_CELLS_A_ROUND = 1_000_000
"""Of all tables of one round, empty cells included."""

MOST_IN_TABLE = 8
"""Variables of such a table, a child and its parents: with more, most records would have a cell for themselves."""

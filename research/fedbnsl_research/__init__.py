"""What checks fedbnsl, and what no user needs: the studies of the paper, benchmarks, and other methods.

Packages: `reproduce` has the paper's tables and figures, `bench` the project's own figures, `comparators` other
methods, `trials` runs many plans, and `tuning` searches for settings.
"""

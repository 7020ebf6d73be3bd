"""A learned network as a distribution: families of one DAG of its class, from which values are drawn and predicted.

All values are those of a run's columns: numbers after the data dictionary's transform, positions of ordinal levels,
zeros and ones of binary and nominal ones (a nominal variable of K levels has K - 1 columns).
"""

NETWORK = "network.json"
"""Its file in the folder of a run, and of what a site is given of one."""

"""A participant: the private table, the local solvers, and the session with the coordinator."""

"""The coordinator: the global step of the ADMM, rounds, and the results of a run. It never sees a record."""

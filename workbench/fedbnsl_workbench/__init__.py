"""What users run around a federation: simulation, demo, report, and the class for notebooks.

Packages: `tables` makes data, `scoring` compares a graph with the truth, `report` shows a run, and `pages` defines the
look of charts and HTML. Modules: `network` has what a run learned, `serving` a coordinator in a program, `simulate`
runs a federation in one process, `localnet` runs one as real processes on this machine, `estimator` has the class for
notebooks, and `cli` has the commands.
"""

"""Algorithm 1 at the coordinator: the loop over rounds and the steps of the ADMM.

`round_loop` asks and advances, round after round; `admm` holds the state and its updates, `global_step` solves for W
by L-BFGS, `acyclicity` gives h(W) and its gradient (`walks`: where W is large and sparse), `consensus_graph` turns the
last W into a DAG. All but the loop is pure mathematics.
"""

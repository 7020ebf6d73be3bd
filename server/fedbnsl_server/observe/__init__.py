"""Look at a run from outside: on the terminal, in a browser, as Prometheus metrics, by asking its coordinator."""

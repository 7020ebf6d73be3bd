"""Looking at a run from outside: on the terminal, as Prometheus metrics, and by asking a running coordinator.

`status_client` asks, `terminal` draws, `prometheus` exports, `cli` holds `status`, `watch` and `healthcheck`.
"""

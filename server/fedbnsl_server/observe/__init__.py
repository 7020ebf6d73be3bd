"""Looking at a run from outside: on the terminal, as Prometheus metrics, and by asking a running coordinator.

`status_client` asks, `terminal` draws, `prometheus` says what there is to count and `metrics_port` serves it, `cli`
holds `status`, `watch` and `healthcheck`.
"""

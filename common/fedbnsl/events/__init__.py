"""What happens in a run, and who is told: hooks, traces, logs and the security log."""

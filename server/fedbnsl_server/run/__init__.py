"""One run from its first site to its end: rounds, pauses, operator commands."""

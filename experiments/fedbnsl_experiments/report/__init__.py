"""One self-contained page about a run: what was learned, how, what was spent, what to be careful about."""

"""The kinds of rounds at the coordinator: what each asks of the sites, and what it does with their answers."""

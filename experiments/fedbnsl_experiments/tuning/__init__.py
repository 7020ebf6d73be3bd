"""Search for the settings of a plan: grids, trials over several seeds, a ranking."""

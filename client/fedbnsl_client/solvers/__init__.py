"""Local solvers, one file each."""

"""Research and demonstration: synthetic data, scores, simulation, local networks, benchmarks."""

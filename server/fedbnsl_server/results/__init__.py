"""What is told of a run: result.json, the learned network, warnings and effects."""

"""What a learned network is used for: synthetic tables, and questions about values."""

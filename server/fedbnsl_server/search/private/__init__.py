"""Searches in noisy releases, by a likelihood that knows the noise."""

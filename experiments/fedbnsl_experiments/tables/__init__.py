"""Tables for runs in one process: generated, published (Sachs), from a notebook, or in a folder."""

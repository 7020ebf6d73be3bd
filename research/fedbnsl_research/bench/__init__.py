"""Measure the figures that the project states about itself: accuracy, bytes, speed and memory.

`figures` is the table of their names. Each group of figures has a module, which says what is measured and how. `cli` is
the command `fedbnsl bench`. Data and noise come from seeds: all figures except times and memory are reproducible.
"""

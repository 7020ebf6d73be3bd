"""The figures that the project states about itself: one module for each group of `fedbnsl bench`."""

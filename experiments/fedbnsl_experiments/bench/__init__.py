"""The figures that the project states about itself, such as accuracy, bytes, speed and memory, measured anew.

`figures` is the table of their names; each group of them has a module, which says what is measured and how. `cli` is
the command `fedbnsl bench`. Data and noise come from seeds, so that every figure but times and memory comes out again.
"""

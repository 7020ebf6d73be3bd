"""The network of a run in the formats and objects of other tools, each with what it cannot hold in words.

`distributions` reduces families to what other tools have: tables, and lines. `formats` lists all formats, and writes.
"""

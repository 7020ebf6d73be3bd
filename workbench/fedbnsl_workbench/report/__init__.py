"""What people see of a run: one self-contained HTML page, and a summary on the terminal.

`run_files` reads the run folder, `learned`, `history`, `cautions`, `scales` and `sentences` say what stands in it,
`charts` and `dag_drawing` draw it, `page` puts the page together, and `summary` is for the terminal.
"""

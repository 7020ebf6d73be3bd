"""How the project's HTML pages and charts look, whatever they are about: reports of runs, studies of the paper.

`render` fills the templates of this room, and `chart_files` draws charts in one style and writes them as SVG and PNG.
"""

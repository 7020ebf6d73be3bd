"""Write result.svg, the drawing in README.md: `python docs/_static/draw_result.py RUN`, a run of the tutorial."""

import sys
from pathlib import Path

from fedbnsl_workbench.report.learned import drawing
from fedbnsl_workbench.report.run_files import read_run

# The report's page gives the font and the white ground; a file by itself must bring them.
svg = drawing(read_run(Path(sys.argv[1]))).replace("<svg ", '<svg font-family="sans-serif" style="background:#fff" ', 1)
(Path(__file__).parent / "result.svg").write_text(svg + "\n", encoding="utf-8")

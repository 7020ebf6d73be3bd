"""The grids that come with the package: those of the paper's studies, and an example."""

from importlib.resources import files

from fedbnsl.plan.ready_files import ReadyFiles

GRIDS = ReadyFiles("grid", files("fedbnsl_research.tuning") / "grids")

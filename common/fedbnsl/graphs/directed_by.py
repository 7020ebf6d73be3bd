"""Who directed an edge of a learned graph, or why nobody did."""

from typing import Literal

Source = Literal["interventions", "sites", "noise"]
"""What tells directions that a class leaves open; an edge that follows from several has the first that suffices."""

DirectedBy = Literal[
    "data", "knowledge", "interventions", "sites", "noise", "assumption", "untested", "undecided", "nobody"
]

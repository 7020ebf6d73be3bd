"""The table of figures: the names that `fedbnsl bench` takes, and the functions that measure them.

A function yields one row for each measurement; its first cell, "figure", says what was measured.
"""

from collections.abc import Callable, Iterator

from fedbnsl_research.bench.accuracy import accuracy, sachs, tuning
from fedbnsl_research.bench.agents import agents
from fedbnsl_research.bench.attacks import attacks
from fedbnsl_research.bench.confidence import confidence
from fedbnsl_research.bench.growth import growth
from fedbnsl_research.bench.hubs import hubs
from fedbnsl_research.bench.lean import lean, private_moments, unequal_noise
from fedbnsl_research.bench.load import load
from fedbnsl_research.bench.networks import networks
from fedbnsl_research.bench.pages import pages
from fedbnsl_research.bench.privacy import privacy, privacy_tuning
from fedbnsl_research.bench.private_steps import private_steps
from fedbnsl_research.bench.private_tables import private_tables
from fedbnsl_research.bench.published_code import notears_admm
from fedbnsl_research.bench.robust import honest, robust
from fedbnsl_research.bench.rows import rows
from fedbnsl_research.bench.scale import one_step, thousand, two_thousand
from fedbnsl_research.bench.search_scores import search_scores
from fedbnsl_research.bench.secure_sum import secure_sum
from fedbnsl_research.bench.sites import sites
from fedbnsl_research.bench.sources import sources
from fedbnsl_research.bench.speed import local_solve, network
from fedbnsl_research.bench.startup import startup
from fedbnsl_research.bench.tables import tables
from fedbnsl_research.bench.wire_bytes import wire
from fedbnsl_research.trials.harness import Row

FIGURES: dict[str, Callable[..., Iterator[Row]]] = {
    "accuracy": accuracy,
    "tuning": tuning,
    "sachs": sachs,
    "local-solve": local_solve,
    "network": network,
    "bytes": wire,
    "load": load,
    "attacks": attacks,
    "rows": rows,
    "sources": sources,
    "sites": sites,
    "privacy": privacy,
    "privacy-tuning": privacy_tuning,
    "private-steps": private_steps,
    "private-tables": private_tables,
    "global-step": one_step,
    "d1000": thousand,
    "d2000": two_thousand,
    "lean": lean,
    "private-moments": private_moments,
    "unequal-noise": unequal_noise,
    "hubs": hubs,
    "secure-sum": secure_sum,
    "confidence": confidence,
    "robust": robust,
    "honest-sites": honest,
    "growth": growth,
    "startup": startup,
    "notears-admm": notears_admm,
    "agents": agents,
    "pages": pages,
    "tables": tables,
    "networks": networks,
    "search": search_scores,
}

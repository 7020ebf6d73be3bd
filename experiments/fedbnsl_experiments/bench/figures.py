"""The table of figures: the names that `fedbnsl bench` takes, and the functions that measure them.

A function yields one row for each measurement; its first cell, "figure", says what was measured.
"""

from collections.abc import Callable, Iterator

from fedbnsl_experiments.bench.accuracy import accuracy, sachs, tuning
from fedbnsl_experiments.bench.agents import agents
from fedbnsl_experiments.bench.attacks import attacks
from fedbnsl_experiments.bench.confidence import confidence
from fedbnsl_experiments.bench.growth import growth
from fedbnsl_experiments.bench.hubs import hubs
from fedbnsl_experiments.bench.lean import lean, private_moments, unequal_noise
from fedbnsl_experiments.bench.load import load
from fedbnsl_experiments.bench.networks import networks
from fedbnsl_experiments.bench.pages import pages
from fedbnsl_experiments.bench.privacy import privacy, privacy_tuning
from fedbnsl_experiments.bench.private_steps import private_steps
from fedbnsl_experiments.bench.private_tables import private_tables
from fedbnsl_experiments.bench.published_code import notears_admm
from fedbnsl_experiments.bench.robust import honest, robust
from fedbnsl_experiments.bench.rows import rows
from fedbnsl_experiments.bench.scale import one_step, thousand, two_thousand
from fedbnsl_experiments.bench.search_scores import search_scores
from fedbnsl_experiments.bench.secure_sum import secure_sum
from fedbnsl_experiments.bench.sites import sites
from fedbnsl_experiments.bench.sources import sources
from fedbnsl_experiments.bench.speed import local_solve, network
from fedbnsl_experiments.bench.startup import startup
from fedbnsl_experiments.bench.tables import tables
from fedbnsl_experiments.bench.wire_bytes import wire
from fedbnsl_experiments.trials.harness import Row

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

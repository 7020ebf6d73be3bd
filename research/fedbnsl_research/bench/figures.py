"""The table of figures: the names that `fedbnsl bench` takes, and the functions that measure them.

A function yields one row for each measurement; its first cell, "figure", says what was measured.
"""

from collections.abc import Callable, Iterator

from fedbnsl_research.bench.accuracy import accuracy, sachs
from fedbnsl_research.bench.attacks import attacks
from fedbnsl_research.bench.confidence import confidence
from fedbnsl_research.bench.curved import curved
from fedbnsl_research.bench.directions import directions
from fedbnsl_research.bench.discrete import discrete
from fedbnsl_research.bench.groups import groups
from fedbnsl_research.bench.growth import growth
from fedbnsl_research.bench.hidden import hidden
from fedbnsl_research.bench.hubs import hubs
from fedbnsl_research.bench.kernels import kernels
from fedbnsl_research.bench.lean import lean, private_moments, unequal_noise
from fedbnsl_research.bench.load import load
from fedbnsl_research.bench.missing import missing
from fedbnsl_research.bench.network_answers import network_answers
from fedbnsl_research.bench.network_use import network_use
from fedbnsl_research.bench.networks import networks
from fedbnsl_research.bench.overlapping import overlapping
from fedbnsl_research.bench.privacy import privacy
from fedbnsl_research.bench.privacy_audit import privacy_audit
from fedbnsl_research.bench.private_missing import private_missing
from fedbnsl_research.bench.private_steps import private_steps
from fedbnsl_research.bench.private_tables import private_tables
from fedbnsl_research.bench.registration import registration
from fedbnsl_research.bench.regressions import regressions
from fedbnsl_research.bench.robust import honest, robust
from fedbnsl_research.bench.robust_tails import robust_tails
from fedbnsl_research.bench.scale import thousand
from fedbnsl_research.bench.secure_aggregation import secure_aggregation
from fedbnsl_research.bench.startup import startup
from fedbnsl_research.bench.tables import tables
from fedbnsl_research.bench.wire_bytes import wire
from fedbnsl_research.trials.harness import Row

FIGURES: dict[str, Callable[..., Iterator[Row]]] = {
    "accuracy": accuracy,
    "sachs": sachs,
    "bytes": wire,
    "load": load,
    "attacks": attacks,
    "privacy": privacy,
    "privacy-audit": privacy_audit,
    "private-steps": private_steps,
    "private-tables": private_tables,
    "d1000": thousand,
    "lean": lean,
    "private-moments": private_moments,
    "unequal-noise": unequal_noise,
    "hubs": hubs,
    "kernels": kernels,
    "secure-aggregation": secure_aggregation,
    "confidence": confidence,
    "robust": robust,
    "honest-sites": honest,
    "growth": growth,
    "startup": startup,
    "tables": tables,
    "networks": networks,
    "groups": groups,
    "missing": missing,
    "private-missing": private_missing,
    "overlapping": overlapping,
    "robust-tails": robust_tails,
    "curved": curved,
    "hidden": hidden,
    "directions": directions,
    "regressions": regressions,
    "registration": registration,
    "network": network_use,
    "network-answers": network_answers,
    "discrete": discrete,
}

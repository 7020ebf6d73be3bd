"""Appendix "Reconstruction of Covariance Matrix": what one message of Fed-BNSL tells the coordinator.

(Sigma + rho I) B = rho W - beta + Sigma gives Sigma (B - I) = rho (W - B) - beta, hence

    Sigma = (rho (W - B) - beta) (B - I)^-1.

The paper writes the inverse on the left. In round 1 the factors commute and both are right; from round 2 on only this
one is.
"""

from collections.abc import Mapping

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import LocalUpdate, RoundTask, SiteState
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.run import round_loop
from fedbnsl_server.sites.mailbox import Traffic, UpdateCheck
from fedbnsl_workbench.tables.synthetic import synthesise

D, N = 8, 100
PLAN = Plan(local_solver="closed-form", rounds=2, refit_rounds=0, consensus_penalty=1.3)
FEDERATION = synthesise(D, 10, PLAN.n_participants, N, 11)
TABLES = {f"site-{k}": X for k, X in enumerate(FEDERATION.tables, start=1)}


def reconstruct(B: Matrix, W: Matrix, beta: Matrix, rho_2: float) -> Matrix:
    """The attack: S from one message B and what the coordinator knew before it came."""
    # S (B - I) = right, transposed: numpy solves from the left.
    right = rho_2 * (W - B) - beta
    return np.asarray(np.linalg.solve((B - np.eye(len(B))).T, right.T).T)


class Wiretap:
    """An Exchange in one process that keeps the bytes of every update, as a curious coordinator would.

    Attributes
    ----------
    heard
        One entry a round: by site the bytes of the update.
    known
        One entry a round, before it: W as sent, and by site beta_p.
    """

    def __init__(self, plan: Plan, tables: Mapping[str, Matrix]) -> None:
        self.traffic = Traffic()
        self.heard: list[dict[str, bytes]] = []
        self.known: list[tuple[Matrix, dict[str, Matrix]]] = []
        self._plan = plan
        self._sites = {site: Participant(site, Dataset(FEDERATION.variables, X), plan) for site, X in tables.items()}

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        W = next(iter(tasks.values())).content.weights.to_dense()
        self.known.append((W, {site: state.consensus_dual.to_dense() for site, state in snapshots.items()}))
        form = {"value_type": self._plan.value_type, "dense": self._plan.dense_messages}
        self.heard.append({})
        updates: dict[str, LocalUpdate] = {}
        for site, task in tasks.items():
            sent = codec.encode_update(self._sites[site].handle(task), run=5, **form).SerializeToString()
            self.heard[-1][site] = sent
            updates[site] = message(sent, self._plan)
            check(updates[site])
        return updates


def message(sent: bytes, plan: Plan) -> LocalUpdate:
    return codec.decode_update(federation.Update.FromString(sent), n_variables=D, dense=plan.dense_messages)


def attack(plan: Plan, t: int) -> dict[str, Matrix]:
    """Every site's S as the coordinator computes it from the one message of round t, counted from 1."""
    tap = Wiretap(plan, TABLES)
    round_loop.run(plan, FEDERATION.variables, dict.fromkeys(TABLES, 100), tap, on_round=lambda state, record: None)
    W, duals = tap.known[t - 1]
    return {
        site: reconstruct(message(sent, plan).content.weights.to_dense(), W, duals[site], plan.consensus_penalty)
        for site, sent in tap.heard[t - 1].items()
    }


@pytest.mark.parametrize("t", [1, 2])
def test_one_message_of_the_closed_form_reveals_the_covariance_of_the_table(t: int) -> None:
    found = attack(PLAN, t)
    assert set(found) == set(TABLES)
    for site, X in TABLES.items():
        S = X.T @ X / N
        assert np.abs(found[site] - S).max() < 1e-8
        assert np.abs(S).max() > 0.5


def test_in_the_first_round_the_coordinator_need_know_nothing_but_the_penalty() -> None:
    tap = Wiretap(PLAN, TABLES)
    round_loop.run(PLAN, FEDERATION.variables, dict.fromkeys(TABLES, 100), tap, on_round=lambda state, record: None)
    zero = np.zeros((D, D))
    B = message(tap.heard[0]["site-1"], PLAN).content.weights.to_dense()
    X = TABLES["site-1"]
    assert np.abs(reconstruct(B, zero, zero, 1.3) - X.T @ X / N).max() < 1e-8


def test_the_inverse_on_the_left_as_the_paper_has_it_is_right_in_the_first_round_only() -> None:
    tap = Wiretap(PLAN, TABLES)
    round_loop.run(PLAN, FEDERATION.variables, dict.fromkeys(TABLES, 100), tap, on_round=lambda state, record: None)
    X = TABLES["site-1"]
    for t, right in ((1, True), (2, False)):
        W, duals = tap.known[t - 1]
        B = message(tap.heard[t - 1]["site-1"], PLAN).content.weights.to_dense()
        as_printed = np.linalg.inv(B - np.eye(D)) @ (1.3 * (W - B) - duals["site-1"])
        assert bool(np.abs(as_printed - X.T @ X / N).max() < 1e-8) is right


def test_the_sparse_message_of_the_default_solver_does_not_give_the_covariance_away_like_this() -> None:
    for site, S in attack(PLAN.with_settings(local_solver="pgcd"), 1).items():
        X = TABLES[site]
        assert np.abs(S - X.T @ X / N).max() > 0.5


def relative_error(found: Matrix, X: Matrix) -> float:
    S = X.T @ X / len(X)
    return float(np.linalg.norm(found - S) / np.linalg.norm(S))


@pytest.mark.parametrize("t", [1, 2])
def test_a_private_message_does_not_give_the_covariance_away(t: int) -> None:
    privacy = {"epsilon": 1.0, "smoothness": "public", "second_moments": [3.0]}
    plan = PLAN.with_settings(local_solver="dp-pgcd", local_steps=10, l1_weight=0.02, privacy=privacy)
    for site, S in attack(plan, t).items():
        assert relative_error(S, TABLES[site]) > 0.5


@pytest.mark.parametrize("t", [1, 2])
def test_the_sparse_message_without_privacy_is_no_equation_for_it_either(t: int) -> None:
    for site, S in attack(PLAN.with_settings(local_solver="pgcd"), t).items():
        assert relative_error(S, TABLES[site]) > 0.5

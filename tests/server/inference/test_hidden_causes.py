"""Edges that hidden common causes make are tested away, and what is left says what holds with them."""

import numpy as np
import pytest
from scipy import stats

from fedbnsl.graphs.pag import ARROW, CIRCLE, NONE, TAIL, Known
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl_server.inference.hidden_causes import Dependence, NoisyDependence, Pags, tells_enough
from fedbnsl_server.search.class_search import ClassProblem
from fedbnsl_server.search.linear_network import Accuracy, fitted

MANY = 1e9


def nothing(n):
    return Known(np.zeros((n, n), dtype=bool), np.zeros((n, n), dtype=bool))


def columns_of(n, blocks=()):
    names = [f"x{k}" for k in range(n)]
    return Columns.of(names, dict(blocks))


def covariance(W, variance=1.0):
    B = np.linalg.inv(np.eye(len(W)) - W)
    return B.T @ (np.eye(len(W)) * variance) @ B


def searched(S):
    """The DAG of least score, which knows of no hidden cause."""
    n = len(S)
    size = np.sqrt(S.diagonal())
    mask = EdgeMask(Knowledge(), columns_of(n))
    return ClassProblem(S / size / size[:, None], ~np.eye(n, dtype=bool), mask, 1e-6, 0.0, 0).found().dag


def pag(S, dag=None):
    return Pags(Accuracy(MANY), columns_of(len(S)), nothing(len(S)))(searched(S) if dag is None else dag, S)


def test_two_causes_of_two_variables_that_share_a_hidden_cause():
    W = np.zeros((5, 5))
    W[0, 1], W[3, 2], W[4, 1], W[4, 2] = 0.8, 0.7, 0.9, -0.8  # 4 is hidden
    S = covariance(W)[:4, :4]
    dag = searched(S)
    assert np.count_nonzero(dag) > 3, "a DAG needs an edge more"
    found = pag(S, dag)
    expected = np.zeros((4, 4), dtype=int)
    expected[0, 1] = expected[3, 2] = expected[1, 2] = expected[2, 1] = ARROW
    expected[1, 0] = expected[2, 3] = CIRCLE
    assert found.tolist() == expected.tolist()


def random_network(rng, observed, hidden):
    """Weights between the observed ones and then the hidden ones, each of which acts on two or three of them."""
    n = observed + hidden
    order, W = rng.permutation(observed), np.zeros((n, n))
    later = [(order[i], order[j]) for i in range(observed) for j in range(i + 1, observed)]
    chosen = [later[k] for k in rng.choice(len(later), int(1.3 * observed), replace=False)]
    chosen += [(k, c) for k in range(observed, n) for c in rng.choice(observed, 2 + (k % 2), replace=False)]
    for i, j in chosen:
        W[i, j] = rng.uniform(0.4, 0.9) * rng.choice([-1, 1])
    return W


def leads(W):
    found = W != 0
    for _ in W:
        found |= (found.astype(int) @ found.astype(int)) > 0
    return found


def test_what_is_said_of_causes_is_true_whatever_is_hidden():
    rng, told, wrong_by_class = np.random.default_rng(5), 0, 0
    for _ in range(8):
        W = random_network(rng, 12, 3)
        S, acts = covariance(W)[:12, :12], leads(W)[:12, :12]
        dag = searched(S)
        found = pag(S, dag)
        tails, heads = (found == ARROW) & (found.T == TAIL), found == ARROW
        assert not (tails & ~acts).any(), "who is said to act does"
        assert not (heads & acts.T).any(), "at an arrowhead stands no cause of the other"
        told, wrong_by_class = told + int(tails.sum()), wrong_by_class + int((dag & ~acts).sum())
    assert told > 30
    assert wrong_by_class > 10, "or these graphs would show nothing"


def test_without_hidden_causes_all_edges_stay():
    rng = np.random.default_rng(6)
    for _ in range(5):
        W = random_network(rng, 12, 0)
        found = pag(covariance(W))
        assert ((found != NONE) == ((W != 0) | (W != 0).T)).all()
        assert not ((found == ARROW) & (found.T == ARROW)).any()


def test_the_p_value_is_that_of_a_partial_correlation():
    rng = np.random.default_rng(7)
    X = rng.standard_normal((400, 4))
    X[:, 1] += 0.12 * X[:, 0] + X[:, 2]
    X -= X.mean(axis=0)
    of_rest = [x - X[:, 2:] @ np.linalg.lstsq(X[:, 2:], x, rcond=None)[0] for x in X[:, :2].T]
    expected = stats.pearsonr(*of_rest).pvalue
    tests = Dependence(X.T @ X / 400, Accuracy(400.0), columns_of(4))
    assert tests.p_value(0, 1, (2, 3)) == pytest.approx(expected, rel=0.05)
    assert tests.p_value(1, 0, (3, 2)) == pytest.approx(tests.p_value(0, 1, (2, 3)))


def test_of_several_columns_p_values_are_even_where_nothing_depends():
    rng = np.random.default_rng(8)
    columns = columns_of(5, {"x1": "x0", "x3": "x2"})  # two of two columns, and one
    found = []
    for _ in range(300):
        X = rng.standard_normal((60, 5))
        X[:, :4] += X[:, 4:]
        X -= X.mean(axis=0)
        found.append(Dependence(X.T @ X / 60, Accuracy(60.0), columns).p_value(0, 1, (2,)))
    assert stats.kstest(found, "uniform").pvalue > 0.001
    assert np.mean(np.array(found) < 0.05) < 0.09


def test_where_moments_lack_nothing_is_told():
    S = np.eye(3)
    S[0, 1] = S[1, 0] = np.nan
    assert Dependence(S, Accuracy(1000.0), columns_of(3)).p_value(0, 1, ()) is None
    assert Dependence(S, Accuracy(1000.0), columns_of(3)).p_value(0, 2, ()) == 1.0
    same = np.ones((2, 2))
    assert Dependence(same, Accuracy(1000.0), columns_of(2)).p_value(0, 1, ()) == 0.0
    widening = np.full((2, 2), 3.0)
    S = np.array([[1.0, 0.1], [0.1, 1.0]])
    assert Dependence(S, Accuracy(900.0, widening=widening), columns_of(2)).p_value(0, 1, ()) == pytest.approx(
        Dependence(S, Accuracy(100.0), columns_of(2)).p_value(0, 1, ())
    )


def noisy(S, network, noise_std, rng):
    """Moments with noise in the residuals of a network, in units of their standard deviations."""
    N = rng.standard_normal(S.shape)
    size = np.sqrt(network.residual_variance)
    noise = noise_std * (N + N.T) / np.sqrt(2.0) * size * size[:, None]
    return S + network.of_columns(noise)


def test_with_noise_p_values_are_even_where_nothing_depends_and_power_is_as_it_says():
    W = np.zeros((6, 6))
    W[0, 1], W[0, 2], W[1, 3], W[2, 3], W[2, 4], W[4, 5] = 0.8, -0.7, 0.5, 0.6, 0.9, 0.7
    W[1, 4] = 0.12  # about what a test with this noise sees in half of the tables
    S, n, noise_std = covariance(W), 2000, 0.05
    columns = columns_of(6, {"x4": "x3"})  # the variables 0, 1, 2, (3, 4) and 5
    network = fitted(W != 0, S, columns_of(6))
    accuracy = Accuracy(float(n), noise_std)
    rng, even, weak = np.random.default_rng(9), [], []
    for _ in range(400):
        X = rng.standard_normal((n, 6)) @ np.linalg.cholesky(S).T
        seen = noisy(X.T @ X / n, network, noise_std, rng)
        tests = NoisyDependence(S, seen, accuracy, network, columns.members())
        even.append(tests.p_value(0, 3, (1, 2)))  # one column and two
        weak.append(NoisyDependence(S, seen, accuracy, network, columns_of(6).members()).p_value(1, 4, (2,)))
    assert stats.kstest(even, "uniform").pvalue > 0.001
    assert 0.2 < np.mean(np.array(weak) < 0.05) < 0.8
    of_one = NoisyDependence(S, S, accuracy, network, columns_of(6).members())
    assert of_one.shows(0, 1, (), ())
    assert not of_one.shows(1, 4, (2,), (2,))
    assert not of_one.shows(0, 5, (4,), (2,)), "nothing is there"


def test_the_variance_of_noise_is_that_of_every_entry_of_it_in_its_unit():
    """Each of 15 numbers of the noise moves the moments of two columns with two: their covariance is the sum."""
    W = np.zeros((5, 5))
    W[0, 1], W[0, 2], W[1, 3], W[2, 3], W[2, 4], W[0, 4] = 0.8, -0.7, 0.5, 0.6, 0.9, 0.3
    S, noise_std, scales = covariance(W), 0.05, np.array([0.5, 3.0, 1.0, 2.0, 0.25])
    columns = columns_of(5, {"x2": "x1", "x4": "x3"})  # the variables 0, (1, 2) and (3, 4)
    network = fitted(W != 0, S, columns_of(5))
    accuracy = Accuracy(MANY, noise_std, scales=scales)
    back, drawn = np.linalg.inv(np.eye(5) - W), np.random.default_rng(1).standard_normal((5, 5))
    seen = noise_std * back.T @ ((drawn + drawn.T) * scales * scales[:, None]) @ back
    of_x, of_y, others = [1, 2], [3, 4], [0]

    def moments(C):
        """What is left of the moments of the two after the regressions on the others by the graph's own moments."""
        A, B = (
            np.vstack([-np.linalg.solve(S[np.ix_(others, others)], S[np.ix_(others, one)])]) for one in (of_x, of_y)
        )
        left = C[np.ix_(of_x, of_y)] + A.T @ C[np.ix_(others, of_y)] + C[np.ix_(of_x, others)] @ B
        return (left + A.T @ C[np.ix_(others, others)] @ B).ravel()

    variance = np.zeros((4, 4))
    for k in range(5):
        for m in range(k + 1):
            N = np.zeros((5, 5))
            N[k, m] = N[m, k] = noise_std * (np.sqrt(2.0) if k == m else 1.0) * scales[k] * scales[m]
            moved = moments(back.T @ N @ back)
            variance += np.outer(moved, moved)
    found = NoisyDependence(S, seen, accuracy, network, columns.members()).p_value(1, 2, (0,))
    expected = stats.chi2.sf(moments(seen) @ np.linalg.solve(variance, moments(seen)), 4)
    assert 0.001 < expected < 0.999
    assert found == pytest.approx(expected, rel=1e-3)


def test_an_edge_stays_where_what_is_given_leaves_its_source_too_little_to_show_it():
    """0 -> 1, nearly a copy, 0 -> 2 -> 1, 2 -> 3, 1 -> 3: given 0 and 2, hardly anything of 1 is left to move 3."""
    W = np.zeros((4, 4))
    W[0, 1], W[0, 2], W[2, 1], W[2, 3], W[1, 3] = 1.0, 0.6, 0.15, 0.6, 0.35
    noise = np.diag([1.0, 0.1, 1.0, 1.0])
    back = np.linalg.inv(np.eye(4) - W)
    S = back.T @ noise**2 @ back
    network, accuracy = fitted(W != 0, S, columns_of(4)), Accuracy(8000.0, 0.02)
    tests = NoisyDependence(S, S, accuracy, network, columns_of(4).members())
    assert tests.shows(1, 3, (2,), (2,))
    assert not tests.shows(1, 3, (2,), (0, 2))
    rng, gone, untested = np.random.default_rng(3), 0, 0
    for _ in range(40):
        X = rng.standard_normal((8000, 4)) @ np.linalg.cholesky(S).T
        seen = noisy(X.T @ X / 8000, network, accuracy.noise_std, rng)
        of_draw = Pags(accuracy, columns_of(4), nothing(4), fitted(W != 0, seen, columns_of(4)))
        found = of_draw.found(W != 0, seen, seen)
        gone += found.marks[1, 3] == NONE
        untested += found.untested[1, 3]
    assert gone == 0
    assert untested > 10


def test_an_edge_that_noise_hides_stays_and_nothing_is_concluded_from_it():
    """0 -> 1 <- hidden -> 2 <- 3, and an edge that a DAG needs: noise hides it unless it is little."""
    W = np.zeros((5, 5))
    W[0, 1], W[3, 2], W[4, 1], W[4, 2] = 0.8, 0.7, 0.9, -0.8  # 4 is hidden
    S = covariance(W)[:4, :4]
    dag = searched(S)
    [gone] = np.argwhere(np.triu((dag | dag.T) & (pag(S, dag) == NONE) & ~np.eye(4, dtype=bool))).tolist()

    def found(noise_std):
        accuracy = Accuracy(1e6, noise_std)
        return Pags(accuracy, columns_of(4), nothing(4), fitted(dag, S, columns_of(4))).found(dag, S)

    little, much = found(1e-3), found(0.5)
    assert (little.marks == pag(S, dag)).all()
    assert not little.untested.any()
    assert gone in np.argwhere(np.triu(much.untested)).tolist()
    assert set(much.marks[much.untested].tolist()) == {CIRCLE}
    assert (((much.marks == ARROW) & (little.marks != ARROW)) == 0).all()


def test_where_noise_hides_too_much_nothing_is_told():
    assert tells_enough(Accuracy(100.0))
    assert tells_enough(Accuracy(8000.0, 0.02))
    assert not tells_enough(Accuracy(8000.0, 0.05))
    assert not tells_enough(Accuracy(100.0, 0.001)), "few rows beside noise"


def test_an_edge_whose_moments_lack_stays_and_nothing_is_concluded_from_it():
    W = np.zeros((5, 5))
    W[0, 1], W[3, 2], W[4, 1], W[4, 2] = 0.8, 0.7, 0.9, -0.8  # 4 is hidden
    S = covariance(W)[:4, :4]
    dag = searched(S)
    [(a, b)] = np.argwhere(np.triu((dag | dag.T) & (pag(S, dag) == NONE), k=1)).tolist()
    lacking = S.copy()
    lacking[a, b] = lacking[b, a] = np.nan
    found = Pags(Accuracy(MANY), columns_of(4), nothing(4)).found(dag, lacking)
    assert found.untested[a, b]
    assert found.marks[a, b] == found.marks[b, a] == CIRCLE

r"""R code that builds the network in bnlearn, and the class of graphs as the matrix `amat.cpdag` of pcalg.

Texts are ASCII but for comments: R reads a file in the encoding of the machine, and `\u` in any.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_workbench.networks.exports.distributions import OfLevels, OfNumbers
from fedbnsl_workbench.networks.exports.wording import without_lines


def bnlearn(
    variables: Sequence[str],
    levels: Mapping[str, Sequence[str]],
    of: Mapping[str, OfLevels | OfNumbers],
    comments: Iterable[str],
) -> str:
    """Code after which `network` is a `bn.fit` of bnlearn: discrete, Gaussian, or conditional Gaussian (hybrid).

    Parents are in the order of `variables`, as bnlearn has them.
    """
    arcs = [(parent, name) for name, one in of.items() for parent in one.parents]
    lines = _comments(comments)
    lines += ["library(bnlearn)", f"dag <- empty.graph({_vector(variables)})"]
    if arcs:
        flat = ",\n  ".join(f"{_text(source)}, {_text(target)}" for source, target in arcs)
        lines.append(f"arcs(dag) <- matrix(c(\n  {flat}), ncol = 2, byrow = TRUE)")
    lines.append("dist <- list()")
    for name, one in of.items():
        told = _table(name, levels, one) if isinstance(one, OfLevels) else _line(name, levels, one)
        lines += [*told[:-1], f"dist[[{_text(name)}]] <- {told[-1]}"]
    return "\n".join([*lines, "network <- custom.fit(dag, dist)", ""])


def pcalg(variables: Sequence[str], arrows: Mask, lines: Mask, comments: Iterable[str]) -> str:
    """Code after which `amat` is the matrix; (V, V) `arrows` from row to column, and `lines` in both directions.

    pcalg writes an arrow the other way: amat[b, a] is 1 and amat[a, b] is 0 where a is a parent of b.
    """
    n = len(variables)
    child, parent = np.nonzero(arrows.T | lines)
    code = [
        *_comments(comments),
        "# amat.cpdag of pcalg: amat[b, a] = 1 and amat[a, b] = 0 for a -> b; both are 1 where there is no direction",
        f"variables <- {_vector(variables)}",
        f"amat <- matrix(0, {n}, {n}, dimnames = list(variables, variables))",
    ]
    if child.size:
        rows, columns = (", ".join(map(str, (one + 1).tolist())) for one in (child, parent))
        code.append(f"amat[cbind(c({rows}), c({columns}))] <- 1")
    return "\n".join([*code, ""])


def _table(name: str, levels: Mapping[str, Sequence[str]], of: OfLevels) -> list[str]:
    axes = [name, *of.parents]
    names = ", ".join(f"{_text(one)} = {_vector(levels[one])}" for one in axes)
    shape = ", ".join(str(len(levels[one])) for one in axes)
    # The first axis changes fastest in R: that of the variable, then that of its first parent.
    values = np.moveaxis(of.table, -1, 0).ravel(order="F")
    return [f"array({_numbers(values)}, dim = c({shape}), dimnames = list({names}))"]


def _line(name: str, levels: Mapping[str, Sequence[str]], of: OfNumbers) -> list[str]:
    terms = ["(Intercept)", *of.number_parents]
    if not of.level_parents:
        values = [float(of.intercepts), *of.slopes.tolist()]
        coefficients = ", ".join(f"{_text(term)} = {value!r}" for term, value in zip(terms, values, strict=True))
        return [f"list(coef = c({coefficients}), sd = {of.noise_std!r})"]
    # Columns are combinations of levels, the first parent's changing fastest.
    intercepts = of.intercepts.ravel(order="F")
    n = len(intercepts)
    matrix = np.vstack([intercepts, np.repeat(of.slopes[:, None], n, axis=1)]).ravel(order="F")
    of_levels = _vector(of.level_parents)
    return [
        f"# columns: combinations of levels of {without_lines(', '.join(of.level_parents))}",
        f"stopifnot(identical(intersect(parents(dag, {_text(name)}), {of_levels}), {of_levels}))",
        f"list(coef = matrix({_numbers(matrix)}, ncol = {n}, dimnames = list({_vector(terms)}, NULL)), "
        f"sd = rep({of.noise_std!r}, {n}))",
    ]


def _comments(texts: Iterable[str]) -> list[str]:
    return [f"# {without_lines(text)}" for text in texts]


def _numbers(values: Matrix) -> str:
    return f"c({', '.join(map(repr, values.tolist()))})"


def _vector(texts: Sequence[str]) -> str:
    return f"c({', '.join(map(_text, texts))})"


def _text(text: str) -> str:
    escaped = (_character(one) for one in text)
    return f'"{"".join(escaped)}"'


def _character(one: str) -> str:
    if one in '"\\':
        return f"\\{one}"
    if " " <= one <= "~":
        return one
    return f"\\u{{{ord(one):x}}}" if ord(one) < 0x10000 else f"\\U{{{ord(one):x}}}"

"""Bugs in the releases of moments: in the sums, in the bound, in the noise, and in where the noise comes from."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from audit.planted import Plant, rewritten
from audit.released_moments import FILE_BLOCK, D
from fedbnsl_client.data import mapped_array
from fedbnsl_client.losses import blocked, clipped
from fedbnsl_client.privacy import private_moments
from fedbnsl_client.rounds import residual_moments
from fedbnsl_client.solvers import local_solver

Change = tuple[str, str]


def changed_moments(name: str, *changes: Change) -> Plant:
    """A bug that is a change of the module of the releases, wherever they are called."""

    @contextmanager
    def plant(folder: Path) -> Iterator[None]:
        changed = rewritten(private_moments, folder, *changes)
        with ExitStack() as stack:
            for caller in (private_moments, residual_moments, local_solver):
                for release in (
                    "release_second_moments",
                    "release_covariance",
                    "release_residual_moments",
                    "residual_sums",
                ):
                    if hasattr(caller, release):
                        stack.enter_context(mock.patch.object(caller, release, getattr(changed, release)))
            yield

    plant.__name__ = name
    return plant


def changed_row_blocks(name: str, change: Change) -> Plant:
    """A bug in how a table in a file is read."""

    @contextmanager
    def plant(folder: Path) -> Iterator[None]:
        size = ("BLOCK_BYTES = 16 * 2**20", f"BLOCK_BYTES = 8 * {D} * {FILE_BLOCK}")
        row_blocks = rewritten(mapped_array, folder, size, change).row_blocks
        with ExitStack() as stack:
            for caller in (mapped_array, blocked):
                stack.enter_context(mock.patch.object(caller, "row_blocks", row_blocks))
            yield

    plant.__name__ = name
    return plant


@contextmanager
def only_the_last_block_of_a_step(folder: Path) -> Iterator[None]:
    """Private steps on a table in a file."""
    changed = rewritten(blocked, folder, ("self.sums[j] += block.sums[j]", "self.sums[j] = block.sums[j]"))
    with mock.patch.object(blocked, "BlockedGradient", changed.BlockedGradient):
        yield


@contextmanager
def the_last_block_left_out_of_a_step(folder: Path) -> Iterator[None]:
    """Private steps on a table in memory."""
    product = "product = x[k] * residual[k]"
    changed = rewritten(clipped, folder, (product, f"{product} if k < residual.size // 1024 * 1024 else 0.0"))
    with mock.patch.object(clipped, "ClippedGradient", changed.ClippedGradient):
        yield


# ---- sums: which records count, and how often -----------------------------------------------------------------------

_SLICE, _STARTS = "rows[start : start + _BLOCK]", "range(0, len(rows), _BLOCK)"
_READ = "X[start : len(X) if start == starts[-1] else start + rows]"
WRONG_BLOCKS: list[Plant] = [
    changed_moments("a_row_twice_at_an_edge", (_SLICE, "rows[max(start - 1, 0) : start + _BLOCK]")),
    changed_moments("a_row_too_few_at_an_edge", (_SLICE, "rows[start : start + _BLOCK - 1]")),
    changed_moments("the_last_block_left_out", (_STARTS, "range(0, max(len(rows) - _BLOCK, 1), _BLOCK)")),
    changed_moments("the_first_block_twice", (_STARTS, "(0, *range(0, len(rows), _BLOCK))")),
]
WRONG_FILE_BLOCKS: list[Plant] = [
    changed_row_blocks("a_row_twice_in_a_file", (_READ, _READ.replace("[start :", "[max(start - 1, 0) :"))),
    changed_row_blocks("a_row_too_few_in_a_file", (_READ, _READ.replace("start + rows]", "start + rows - 1]"))),
    changed_row_blocks("the_last_rows_of_a_file_left_out", (_READ, "X[start : start + rows]")),
]

# ---- the bound: from the plan, never from the table -----------------------------------------------------------------

_OF_RESIDUALS = "    def residuals(rows: Matrix) -> Matrix:\n"
_LONGEST = "float(np.sqrt((Z * Z).sum(axis=1)).max())"


def bound_from_the_table(name: str, bound: str) -> Plant:
    return changed_moments(
        name,
        (_OF_RESIDUALS, f"    Z = (X - X @ W) / scales\n    norm_bound = {bound}\n\n{_OF_RESIDUALS}"),
        (
            "    values, vectors = np.linalg.eigh(",
            f"    Z = X\n    norm_bound = {bound}\n    values, vectors = np.linalg.eigh(",
        ),
    )


WRONG_BOUNDS: list[Plant] = [
    bound_from_the_table("the_longest_record_is_the_bound", _LONGEST),
    bound_from_the_table("a_longer_record_raises_the_bound", f"max(norm_bound, {_LONGEST})"),
    bound_from_the_table("short_records_lower_the_bound", f"min(norm_bound, {_LONGEST})"),
    bound_from_the_table("the_mean_norm_is_the_bound", _LONGEST.replace(".max()", ".mean()")),
    changed_moments(
        "the_longest_of_a_block_is_its_bound",
        ("np.sqrt((Z * Z).sum(axis=1)), norm_bound)", f"np.sqrt((Z * Z).sum(axis=1)), min(norm_bound, {_LONGEST}))"),
    ),
]
squares_bounded_by_the_largest = changed_moments(
    "squares_bounded_by_the_largest",
    ("    def square_shares(", "    bounds = np.minimum(bounds, (X * X).max(axis=0))\n\n    def square_shares("),
)

# ---- the noise of a release: of the paid width, a draw of its own for every number ----------------------------------

_NOISE = "    noise = rounded_gaussians((variance // 2, variance), (i == j).astype(np.int64), randbelow)\n"
_SYMMETRIC = "noisy[i, j] = noisy[j, i] = (sums[i, j] + noise).astype(np.float64)\n"
_D = "len(sums)"


def changed_noise(name: str, *changes: str) -> Plant:
    """Statements that follow where the noise was drawn, and change it."""
    return changed_moments(name, (_NOISE, _NOISE + "".join(f"    {change}\n" for change in changes)))


def changed_widths(name: str, variances: str) -> Plant:
    """Other variances off and on the diagonal."""
    return changed_moments(name, ("(variance // 2, variance)", f"({variances})"))


WRONG_WIDTHS: list[Plant] = [
    changed_noise("none_off_the_diagonal_of_large_matrices", f"noise = noise * ((i == j) | ({_D} <= 8))"),
    changed_noise("none_on_the_diagonal", "noise = noise * (i < j)"),
    changed_noise("none_in_the_last_column", f"noise = noise * (j < {_D} - 1)"),
    changed_widths("half_the_variance_on_the_diagonal", "variance // 2, variance // 2"),
    changed_widths("a_quarter_of_the_variance_off_the_diagonal", "variance // 4, variance"),
    changed_widths("the_root_for_the_variance", "int((variance // 2) ** 0.5), int(variance**0.5)"),
]
entries_and_their_transposes_drawn_apart = changed_moments(
    "entries_and_their_transposes_drawn_apart",
    (
        _SYMMETRIC,
        f"{_SYMMETRIC}    other = rounded_gaussians((variance // 2,), 0 * i, randbelow)\n"
        "    noisy[j, i] += (i < j) * (other - noise)\n",
    ),
)


SHARED_NOISE: list[Plant] = [
    changed_noise(
        "one_draw_a_row",
        f"rows = rounded_gaussians((variance // 2,), np.zeros({_D}, dtype=np.int64), randbelow)",
        "noise = np.where(i == j, noise, rows[i])",
    ),
    changed_noise("the_same_draws_in_every_row", "noise = np.where(i == j, noise, noise[j])"),
    changed_noise(
        "draws_mirrored_at_the_other_diagonal",
        f"drawn = np.zeros(({_D}, {_D}), dtype=np.int64)",
        "drawn[i, j] = noise",
        f"p, q = {_D} - 1 - j, {_D} - 1 - i",
        f"noise = np.where((i < j) & (i + j >= {_D}), drawn[p, q], noise)",
    ),
    changed_noise(
        "draws_turned_round_on_the_diagonal",
        f"drawn = np.zeros({_D}, dtype=np.int64)",
        "drawn[i[i == j]] = noise[i == j]",
        f"p = {_D} - 1 - i",
        "noise = np.where((i == j) & (p < i), -drawn[p], noise)",
    ),
]

# ---- the same for the squares ---------------------------------------------------------------------------------------

_SQUARES = "[int(total) + rounded_gaussian(variance, randbelow) for total in sums]"


def changed_squares(name: str, noisy: str) -> Plant:
    return changed_moments(name, (_SQUARES, noisy))


WRONG_SQUARES: list[Plant] = [
    squares_bounded_by_the_largest,
    changed_squares("half_the_variance_of_squares", _SQUARES.replace("variance", "variance // 2")),
    changed_squares("no_noise_on_the_last_square", f"[*{_SQUARES.replace('in sums', 'in sums[:-1]')}, int(sums[-1])]"),
]
one_draw_for_all_squares = changed_squares(
    "one_draw_for_all_squares",
    "[int(total) + noise for noise in (rounded_gaussian(variance, randbelow),) for total in sums]",
)

"""`fedbnsl data`: what a site needs to describe its table. The consortium's distribution adds more commands to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from fedbnsl.cli import Group
from fedbnsl.console.wording import first_few
from fedbnsl.errors import SetupError

_PATH = click.Path(path_type=Path)


@click.group(cls=Group)
def data() -> None:
    """Draft the data dictionary of tables; in a consortium's installation, also make tables for several sites."""


@data.command("dictionary")
@click.argument("tables", nargs=-1, required=True, type=_PATH, metavar="TABLE... | FOLDER")
@click.option("--public-data", is_flag=True, help="Confirm that anybody may see these tables.")
@click.option(
    "--dictionary",
    "described_by",
    type=_PATH,
    help="The consortium's data dictionary: write only what is different in these tables, their column maps.",
)
@click.option(
    "--missing",
    multiple=True,
    metavar="[COLUMN=]CELL",
    help="A cell that stands for a missing value, in every column or in one; repeatable. Usual marks, such as ? and *, "
    "are found without it.",
)
@click.option(
    "--merge-rare",
    type=click.IntRange(min=2),
    default=None,
    metavar="ROWS",
    help="Make one level, other, of the levels of a nominal variable that occur in fewer rows.",
)
@click.option(
    "--out",
    type=_PATH,
    help="File to write.  [default: FOLDER/dictionary.toml, or dictionary.toml here; with --dictionary, see above]",
)
@click.option("--overwrite", is_flag=True, help="Draft again: replace files that are there, with all edits in them.")
@click.option("--json", "as_json", is_flag=True, help="Print what was guessed as JSON.")
def dictionary_command(
    tables: tuple[Path, ...],
    public_data: bool,
    described_by: Path | None,
    missing: tuple[str, ...],
    merge_rare: int | None,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Draft a data dictionary from CSV tables that anybody may see, such as a published or an invented sample.

    FOLDER stands for its site-1.csv, site-2.csv, and so on. Kinds are guessed; levels are those that occur. Units and
    ranges are left open for a person to fill in, from public knowledge. Where cells stand for a missing value, or
    levels are written in more than one way, a column map is written beside each table: site-1.columns.toml for
    site-1.csv. Never use it on private tables: the dictionary is public, and its levels would be theirs.

    With --dictionary, at a site and on its own table: a column map alone is written, TABLE.columns.toml. It stays at
    the site, and nothing is sent.
    """
    from fedbnsl_client.data.site_files import DICTIONARY, site_files

    folder = tables[0] if len(tables) == 1 and tables[0].is_dir() else None
    if folder is not None:
        tables = tuple(site_files(folder).values())
    if described_by is not None:
        _draft_column_maps(tables, described_by, missing, out, overwrite=overwrite, as_json=as_json)
        return
    if not public_data:
        raise SetupError(
            "a dictionary is public, and a draft holds levels that are in the tables; confirm by --public-data that "
            "anybody may see them, or write dictionary.toml by hand, from public knowledge",
            remedy="At a site that has the consortium's dictionary.toml, `fedbnsl data dictionary TABLE --dictionary "
            "dictionary.toml` drafts the site's own columns.toml, which stays there.",
        )
    from fedbnsl_client.data.drafts.dictionary_draft import draft

    drafted = draft(tables, missing=missing, merge_below=merge_rare or 0)
    files = drafted.write(out := out or (folder or Path()) / DICTIONARY, overwrite=overwrite)
    if as_json:
        used = {name: found for name, found in drafted.guesses.items() if found.is_used}
        found = {
            "file": str(out),
            "variables": {name: found.settings for name, found in used.items()},
            "left_out": {name: found.left_out for name, found in drafted.guesses.items() if not found.is_used},
            "lacking": drafted.lacking,
            "missing": {name: dict(found.missing) for name, found in used.items() if found.missing},
            "to_decide": {name: list(found.asks) for name, found in used.items() if found.asks},
            "column_maps": list(map(str, files[1:])),
        }
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    for line in drafted.said():
        click.echo(line)
    click.echo(f"wrote {out}: read every entry, and fill in units and ranges")
    if files[1:]:
        click.echo(f"wrote {first_few(map(str, files[1:]))}: what stands for a missing value or a level in the tables")


def _draft_column_maps(
    tables: Sequence[Path],
    dictionary: Path,
    missing: Sequence[str],
    out: Path | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    from fedbnsl.plan.dictionary import Dictionary
    from fedbnsl_client.data.drafts.column_map_draft import draft_column_map
    from fedbnsl_client.data.drafts.dictionary_draft import write_drafts
    from fedbnsl_client.data.site_files import column_map_of

    if out is not None and len(tables) > 1:
        raise click.UsageError("--out names the column map of one table; leave it out for several")
    described = Dictionary.load(dictionary)
    drafts = {out or column_map_of(table): draft_column_map(table, described, missing=missing) for table in tables}
    by_out = next(iter(drafts)) if len(drafts) == 1 else None
    write_drafts({path: one.text for path, one in drafts.items()}, overwrite=overwrite, by_out=by_out)
    if as_json:
        told = {str(path): {"columns": one.settings, "to_decide": one.asks} for path, one in drafts.items()}
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    for path, one in drafts.items():
        for line in one.said():
            click.echo(line)
        click.echo(f"wrote {path}: read every entry. It stays here; `--column-map {path}` reads the table by it")

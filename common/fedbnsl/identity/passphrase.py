"""Passphrases of private keys: from a file, or from the person at the terminal, once one is needed."""

import sys
from collections.abc import Callable
from pathlib import Path

import click

from fedbnsl.errors import IdentityError

_ASK = f"{__name__}.ask"
_SHORTEST = 12  # a key's file alone must not be enough to try out all passphrases


class PassphraseError(IdentityError):
    """A passphrase that is missing, cannot be read, or does not open a key."""

    remedy = "Pass the right passphrase with --passphrase-file, or type it where this asks for it; nothing was changed."


class Passphrases:
    """Where the passphrases of keys come from; each is kept in this process alone, and asked for once."""

    def __init__(
        self,
        file: Path | None = None,  # its content without the line end, for every key; None: somebody is asked
        # What asks, given the question and whether the passphrase is a new one; None: nobody can be asked.
        ask: Callable[[str, bool], str] | None = None,
        *,
        ask_for_new: bool = False,  # whether somebody wants to type in the passphrase of a new key
    ) -> None:
        self._file, self._ask, self._ask_for_new = file, ask, ask_for_new
        self._known: dict[str, bytes] = {}

    def of(self, key: str) -> bytes:
        """The passphrase of the key in this file.

        Raises PassphraseError if there is no file to read it from, and nobody to ask.
        """
        if key not in self._known:
            if self._file is not None:
                self._known[key] = _read(self._file)
            elif self._ask is not None:
                self._known[key] = self._ask(f"passphrase of {key}", False).encode()
            else:
                raise PassphraseError(f"{key} is protected by a passphrase, and there is nobody here to ask")
        return self._known[key]

    def for_new(self, key: str) -> bytes | None:
        """The passphrase that a new key gets; None: it gets none, also where an empty one is typed in.

        Raises PassphraseError if it is too short, or nobody can be asked.
        """
        if self._file is not None:
            chosen = _read(self._file)
        elif not self._ask_for_new:
            return None
        elif self._ask is None:
            raise PassphraseError("there is no terminal to ask for a passphrase on")
        else:
            chosen = self._ask(f"new passphrase of {key} (empty: none)", True).encode()
            if not chosen:
                return None
        if len(chosen) < _SHORTEST:
            raise PassphraseError(f"the passphrase of {key} is too short: use at least {_SHORTEST} characters")
        self._known[key] = chosen
        return chosen


NOBODY_KNOWS = Passphrases()


def _read(file: Path) -> bytes:
    try:
        found = file.read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise PassphraseError(f"{file} cannot be read: {error.strerror}") from None
    if not found:
        raise PassphraseError(f"{file} is empty; expected a passphrase")
    return found


def _ask_on_terminal(question: str, new: bool) -> str:
    return str(
        click.prompt(question, hide_input=True, err=True, default="", show_default=False, confirmation_prompt=new)
    )


def _from_option(context: click.Context, parameter: click.Parameter, file: Path | None) -> Passphrases:
    ask = _ask_on_terminal if sys.stdin is not None and sys.stdin.isatty() else None
    return Passphrases(file, ask, ask_for_new=context.meta.get(_ASK, False))


def _note_asked(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    context.meta[_ASK] = asked


# Commands take both as `passphrases`; the second one is read first.
passphrase_option = click.option(
    "--passphrase-file",
    "passphrases",
    type=click.Path(path_type=Path),
    callback=_from_option,
    help="File that holds the passphrase of the private key.  [default: asked for, if the key has one]",
)
ask_option = click.option(
    "--ask-passphrase",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_note_asked,
    help="Ask for a passphrase that protects what is private here.",
)

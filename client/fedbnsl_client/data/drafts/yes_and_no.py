"""Words that say yes or no, whatever the language and the other cells."""

_YES = frozenset(["yes", "y", "true", "t", "1", "ja", "j", "oui", "si", "s", "present", "positive", "pos", "+"])
_NO = frozenset(["no", "n", "false", "f", "0", "nein", "non", "absent", "negative", "neg", "-"])


def truth(text: str) -> bool | None:
    """What a word says; None: neither."""
    lower = text.casefold()
    return True if lower in _YES else False if lower in _NO else None

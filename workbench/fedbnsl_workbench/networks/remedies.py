"""Errors in a notebook: what helps stands below the text, where a command would print it."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from fedbnsl.errors import FedbnslError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def remedy_as_note(call: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The same call, whose errors have their remedy as a note; that of a whole class of errors speaks of options."""

    @wraps(call)
    def with_note(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return call(*args, **kwargs)
        except FedbnslError as error:
            if error.remedy != type(error).remedy and error.remedy not in getattr(error, "__notes__", ()):
                error.add_note(error.remedy)
            raise

    return with_note

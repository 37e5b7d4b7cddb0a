"""Find the hint for a common error of multi-process JAX, by its type, its text and the function that raised it.

Some texts can come from any code (`AssertionError` without text, `list index out of range`). They match only if the JAX
function that is known to raise them did so, because a wrong hint is worse than none.
"""

from __future__ import annotations

import re

from mhnb.core.explain.culprit import ErrorSite
from mhnb.core.explain.cures import HINTS, RecognisedError
from mhnb.core.explain.moved import find_removed_api

__all__ = ["find_hint", "find_printed_hint"]

_PRINTED = re.compile(r"AttributeError: Can't get attribute '[^']*' on <module '__main__'[^>]*>")
_WAITING_ERRORS = ("BrokenProcessPool", "EOFError", "TimeoutError")
"""Errors that a process raises while it waits for another one that failed to start."""


def find_hint(ename: str, evalue: str, *, site: ErrorSite | None = None, code: str | None = None) -> str | None:
    """Return the hint for a known error; None for any other.

    Args:
        ename: the exception's type.
        evalue: its text.
        site: where it was raised. Without it, errors that only their site distinguishes get no hint.
        code: the line of the cell that led there. With it, the hint uses the user's own names.

    >>> find_hint("RuntimeError", "Array has been deleted with shape=float32[8].").split(":")[1]
    " go on with the function's result."
    """
    site = site or ErrorSite()
    raised_in = f"{site.module}.{site.function}"
    for hint in HINTS:
        found = hint.pattern.search(evalue)
        if found is None or not hint.ename.fullmatch(ename) or not hint.raised_in.fullmatch(raised_in):
            continue
        # The function that builds a text may find that no hint applies after all.
        if text := hint.text if isinstance(hint.text, str) else hint.text(RecognisedError(found, site, code or "")):
            return text
    return find_removed_api(ename, evalue)


def find_printed_hint(ename: str, printed: str) -> str | None:
    """Return the hint for a cause that the error does not contain: a process that the cell started has only printed it.

    Args:
        ename: the type of the cell's error.
        printed: the output of the cell's rank.

    >>> find_printed_hint("TimeoutError", "AttributeError: Can't get attribute 'f' on <module '__main__'>")[:14]
    'A process that'
    """
    found = _PRINTED.search(printed) if ename in _WAITING_ERRORS else None
    if found is None:
        return None
    kind, _, text = found[0].partition(": ")
    hint = find_hint(kind, text)
    return hint and f"A process that this cell started has ended with an error of its own, printed below. {hint}"

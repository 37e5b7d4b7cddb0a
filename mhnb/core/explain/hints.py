"""What to do about errors that everyone meets in multi-process JAX, found by their type, their text and where they were raised.

It refuses to guess where the words are anyone's (`AssertionError` without text, `list index out of range`) unless they come from
the very function of JAX that says them: a wrong hint is worse than none.
"""

from __future__ import annotations

import re

from mhnb.core.explain.culprit import ErrorSite
from mhnb.core.explain.cures import CURES, Seen
from mhnb.core.explain.moved import find_moved

__all__ = ["find_hint", "find_printed_hint"]

_PRINTED = re.compile(r"AttributeError: Can't get attribute '[^']*' on <module '__main__'[^>]*>")
_WAITED = ("BrokenProcessPool", "EOFError", "TimeoutError")
"""What the process that waits for another one raises, when that one could not begin."""


def find_hint(ename: str, evalue: str, *, site: ErrorSite | None = None, code: str | None = None) -> str | None:
    """Find the cure for a known error; None for any other.

    Args:
        ename: the exception's type.
        evalue: its text.
        site: where it was raised; without it, errors that only their place tells apart find none.
        code: the line of the cell that led there; with it the cure speaks of the user's own names.

    >>> find_hint("RuntimeError", "Array has been deleted with shape=float32[8].").split(":")[1]
    " go on with the function's result."
    """
    site = site or ErrorSite()
    place = f"{site.module}.{site.function}"
    for cure in CURES:
        found = cure.pattern.search(evalue)
        if found is None or not cure.ename.fullmatch(ename) or not cure.place.fullmatch(place):
            continue
        # A text that is made may find that nothing is known after all.
        if text := cure.text if isinstance(cure.text, str) else cure.text(Seen(found, site, code or "")):
            return text
    return find_moved(ename, evalue)


def find_printed_hint(ename: str, printed: str) -> str | None:
    """Find the cure where the cause is not in the error: a process that the cell started has printed it, and nothing else came back.

    Args:
        ename: the type of the cell's error.
        printed: what the cell's rank has printed.

    >>> find_printed_hint("TimeoutError", "AttributeError: Can't get attribute 'f' on <module '__main__'>")[:14]
    'A process that'
    """
    found = _PRINTED.search(printed) if ename in _WAITED else None
    if found is None:
        return None
    kind, _, text = found[0].partition(": ")
    hint = find_hint(kind, text)
    return hint and f"A process that this cell started has ended with an error of its own, printed below. {hint}"

"""What to do about errors that everyone meets in multi-process JAX, found by their type, their text and where they were raised.

It refuses to guess where the words are anyone's (`AssertionError` without text, `list index out of range`) unless they come from
the very function of JAX that says them: a wrong hint is worse than none.
"""

from __future__ import annotations

from mhnb.core.explain.culprit import ErrorSite
from mhnb.core.explain.cures import CURES, Seen
from mhnb.core.explain.moved import find_moved

__all__ = ["find_hint"]


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

"""Display ids that are unique in the notebook, also among displays that an earlier kernel left in it."""

from __future__ import annotations

import secrets
from itertools import count

__all__ = ["new_uid"]

# Created once, because random bytes need a system call and every cell needs an id.
_PREFIX, _COUNTER = secrets.token_hex(6), count(1)


def new_uid() -> str:
    """Return the next id; safe to call from any thread."""
    return f"mhnb-{_PREFIX}-{next(_COUNTER)}"

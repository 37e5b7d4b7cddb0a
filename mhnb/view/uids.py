"""Names of displays that no other of the notebook has, also not one that an earlier kernel left in it."""

from __future__ import annotations

import secrets
from itertools import count

__all__ = ["new_uid"]

# Once: random bytes are a call of the system, and every cell takes a name.
_PROCESS, _COUNT = secrets.token_hex(6), count(1)


def new_uid() -> str:
    """Give the next one; from any thread."""
    return f"mhnb-{_PROCESS}-{next(_COUNT)}"

"""How a cluster is started, beyond its shape."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from mhnb.errors import InvalidRequest

__all__ = ["StartOptions", "check_guard"]

_GUARDS = ("lockstep", "parity", "off")
_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How to start, beyond the shape."""

    name: str = "default"
    start_timeout_s: float = _START_TIMEOUT_S
    keep: bool = False
    guard: str = "lockstep"
    fork: bool = sys.platform == "linux"
    spare: bool = False
    """Whether as many ranks again are kept warm for a restart."""


def check_guard(guard: str) -> None:
    """Hold that there is such a guard.

    Raises:
        InvalidRequest: there is not.
    """
    if guard not in _GUARDS:
        raise InvalidRequest(f"--guard {guard!r}: choose lockstep, parity or off")

"""Imported by a test's process before its shell is made: IPython and ipykernel then lack the private names that the shell uses."""

from __future__ import annotations

import sys

from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.interactiveshell import InteractiveShell


def _remove_names() -> None:
    for name in ("_showtraceback", "_format_exception_for_storage"):
        for kind in (ZMQInteractiveShell, InteractiveShell):
            if name in vars(kind):
                delattr(kind, name)


# The suite's own process imports every module, too, and needs the names.
if "pytest" not in sys.modules:
    _remove_names()

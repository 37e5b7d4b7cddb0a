"""Import this before a rank's shell is made: IPython and ipykernel then lack the private names that the shell uses."""

from __future__ import annotations

from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.interactiveshell import InteractiveShell

for name in ("_showtraceback", "_format_exception_for_storage"):
    for kind in (ZMQInteractiveShell, InteractiveShell):
        if name in vars(kind):
            delattr(kind, name)

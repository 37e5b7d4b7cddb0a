"""Hints for limits of the machine: recognise the error that stopped a start, and name what to change on the machine.

It uses the text alone and inspects nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["find_start_hint"]

_PYTHON_VARIABLES = (
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONIOENCODING",
    "PYTHONMALLOC",
    "PYTHONPLATLIBDIR",
    "PYTHONEXECUTABLE",
    "PYTHONWARNINGS",
)
"""Variables whose wrong value keeps Python, or what the ranks import, from starting."""
_PROCESS_LIMIT_HINT = (
    "no further process or thread could be made: raise ulimit -u (processes and threads of this user), ulimit -v where it is set "
    "(memory of a process, as ulimit -d), or the container's limit on pids; or start fewer ranks"
)
_CONDITIONS = (
    (
        r"Fatal Python error: (?:init|preconfig|config|core|Failed)|No module named 'encodings'",
        "Python does not start in this environment; unset the variable that is wrong",
    ),
    (
        r"Too many open files|No file descriptors available",
        "the limit on open files is reached: raise it, e.g. ulimit -n 4096, where Jupyter is started or on the host that the error names",
    ),
    (
        r"can't start new thread|pthread_create|Resource temporarily unavailable",
        _PROCESS_LIMIT_HINT,
    ),
    (
        r"Cannot allocate memory|failed to map segment|MemoryError|std::bad_alloc",
        "there was no memory: start fewer ranks, or raise ulimit -v where it is set, or the container's limit",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "a disk is full, or has no inodes left: df -h FOLDER and df -i FOLDER say which; MHNB_HOME and IPYTHONDIR name other folders",
    ),
    (
        r"File too large",
        "the limit on the size of a file is reached: raise it with ulimit -f in the shell that starts Jupyter",
    ),
    (
        r"Read-only file system",
        "a folder cannot be written to; MHNB_HOME, IPYTHONDIR and TMPDIR name others",
    ),
)


_CRASH = re.compile(r"SIGSEGV|SIGABRT|SIGBUS")
_ADDRESS_SPACE_HINT = (
    "the memory of a process is limited here, and native code ends where it gets none: raise ulimit -v, or lift it"
)


def find_start_hint(text: str, environment: Mapping[str, str], *, has_memory_limit: bool = False) -> str:
    """Return what to change on the machine for an error that stopped a start; empty if the text names no known condition.

    Args:
        text: the whole error.
        environment: of the process that started.
        has_memory_limit: whether the address space of its processes is limited (`ulimit -v`).

    >>> find_start_hint("OSError: [Errno 27] File too large", {})
    'the limit on the size of a file is reached: raise it with ulimit -f in the shell that starts Jupyter'
    """
    for pattern, hint in _CONDITIONS:
        if re.search(pattern, text):
            return hint + (_list_variables(environment) if "variable" in hint else "")
    return _ADDRESS_SPACE_HINT if has_memory_limit and _CRASH.search(text) else ""


def _list_variables(environment: Mapping[str, str]) -> str:
    found = [f"{name}={environment[name]}" for name in _PYTHON_VARIABLES if environment.get(name)]
    return f": {', '.join(found)}" if found else ": env | grep ^PYTHON lists those that are set"

"""Find the mpiexec to test: Open MPI's on PATH, and MPICH's if `MHNB_MPICH` names one."""

from __future__ import annotations

import os
import shutil

__all__ = ["find_mpich", "why_absent"]


def why_absent() -> str | None:
    """Return the reason why mpiexec cannot be tested; None if it can."""
    return None if shutil.which("mpiexec") else "not installed: openmpi-bin"


def find_mpich() -> str | None:
    """Find the mpiexec of an MPICH, which must not be in the environment of another MPI."""
    return os.environ.get("MHNB_MPICH") or shutil.which("mpiexec.mpich") or shutil.which("mpiexec.hydra")

"""The GPUs of this machine, as nvidia-smi lists them and CUDA_VISIBLE_DEVICES allows them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from mhnb.core.reach.gpus import parse_gpus, select_visible
from mhnb.errors import LaunchError

__all__ = ["find_gpus", "list_gpus"]

_LIMIT_S = 30.0


def list_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """List the UUIDs of the GPUs that this process may use; empty where there is no nvidia-smi, or it fails."""
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return ()
    words = [program, "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        asked = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_LIMIT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        # A driver that hangs: JAX will say so in its own words.
        return ()
    return select_visible(parse_gpus(asked.stdout), environment.get("CUDA_VISIBLE_DEVICES"))


def find_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """List the UUIDs of the GPUs that this process may use.

    Raises:
        LaunchError: there is none.
    """
    found = list_gpus(environment)
    if not found:
        seen = environment.get("CUDA_VISIBLE_DEVICES")
        why = (
            "nvidia-smi lists none"
            if seen is None
            else f"CUDA_VISIBLE_DEVICES={seen!r} leaves none of those nvidia-smi lists"
        )
        raise LaunchError(
            f"this machine has no GPU for the ranks: {why}\n"
            "  nvidia-smi -L must list them; simulated hosts need no GPU: %mhjax start\n"
            "  GPUs of other machines: --profile ssh --set share_gpus=True"
        )
    return found

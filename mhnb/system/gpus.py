"""List the GPUs of this machine: those in the output of nvidia-smi that CUDA_VISIBLE_DEVICES allows."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from mhnb.core.reach.environment import parse_gpus, select_visible
from mhnb.errors import LaunchError

__all__ = ["list_gpus", "require_gpus"]

_QUERY_TIMEOUT_S = 30.0


def list_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that this process may use; empty if nvidia-smi is missing or fails."""
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return ()
    command = [program, "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_QUERY_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        # The driver hangs. JAX reports that with a message of its own.
        return ()
    return select_visible(parse_gpus(result.stdout), environment.get("CUDA_VISIBLE_DEVICES"))


def require_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that this process may use.

    Raises:
        LaunchError: this process may use no GPU.
    """
    found = list_gpus(environment)
    if not found:
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        why = (
            "nvidia-smi lists none"
            if visible is None
            else f"CUDA_VISIBLE_DEVICES={visible!r} leaves none of those nvidia-smi lists"
        )
        raise LaunchError(
            f"this machine has no GPU for the ranks: {why}\n"
            "  nvidia-smi -L must list them; simulated hosts need no GPU: %mhjax start\n"
            "  GPUs of other machines: --profile ssh --set share_gpus=True"
        )
    return found

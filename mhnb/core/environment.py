"""The environment variables of simulated ranks, from the user's own and the shape asked for.

Measured reasons stand beside each; the user's own settings win where both could hold.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["COLLECTIVE_TIMEOUT_S", "rank_environment"]

COLLECTIVE_TIMEOUT_S = 300
"""A collective that waits longer raises on the rank. XLA's own default is 30 minutes, longer than anyone looks at a stuck cell."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def rank_environment(user: Mapping[str, str], *, devices: int | None, simulated: bool) -> dict[str, str]:
    """Give the variables to set over the user's environment, before the interpreter starts.

    Args:
        user: the environment of the notebook's process.
        devices: CPU devices per rank; None leaves it to the platform.
        simulated: ranks are CPU processes of this machine, also where a GPU is present.

    >>> rank_environment({}, devices=2, simulated=True)["JAX_NUM_CPU_DEVICES"]
    '2'
    """
    env = {
        # Sets of strings iterate in the same order on every rank: otherwise wrong numbers, silently.
        "PYTHONHASHSEED": _hash_seed(user),
        # JAX's preemption service swallows SIGTERM.
        "JAX_ENABLE_PREEMPTION_SERVICE": user.get("JAX_ENABLE_PREEMPTION_SERVICE", "0"),
        # gRPC honours http_proxy even to loopback.
        "no_proxy": _no_proxy(user),
        "NO_PROXY": _no_proxy(user),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    if simulated:
        env["JAX_PLATFORMS"] = "cpu"
        env["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = user.get("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo")
        env["XLA_FLAGS"] = _xla_flags(user.get("XLA_FLAGS", ""))
    if devices is not None:
        env["JAX_NUM_CPU_DEVICES"] = str(devices)
        # The execution pool is as large as the machine has cores; two devices on few cores deadlock in correct programs.
        env["PJRT_NPROC"] = user.get("PJRT_NPROC", str(max(32, 4 * devices)))
    return env


def _hash_seed(user: Mapping[str, str]) -> str:
    seed = user.get("PYTHONHASHSEED", "")
    return seed if seed.isdecimal() else "0"


def _no_proxy(user: Mapping[str, str]) -> str:
    named = [part for part in (user.get("no_proxy") or user.get("NO_PROXY") or "").split(",") if part]
    return ",".join([*named, *(name for name in _LOOPBACK if name not in named)])


def _xla_flags(flags: str) -> str:
    if "--xla_cpu_collective_timeout_seconds" in flags:
        return flags
    return f"{flags} --xla_cpu_collective_timeout_seconds={COLLECTIVE_TIMEOUT_S}".strip()

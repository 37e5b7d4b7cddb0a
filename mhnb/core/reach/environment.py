"""Environment variables for simulated ranks, computed from the user's own and the requested shape.

Comments give the measured reasons. The user's own settings win where both could apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

__all__ = ["COLLECTIVE_TIMEOUT_S", "add_to_no_proxy", "find_forced_devices", "note_forced_devices", "rank_environment"]

COLLECTIVE_TIMEOUT_S = 300
"""In seconds: a collective that waits longer raises on the rank.

XLA's own default is 30 minutes, longer than any user watches a stuck cell.
"""

_FORCED = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def rank_environment(user: Mapping[str, str], *, devices: int | None, simulated: bool) -> dict[str, str]:
    """Return the variables to set over the user's environment, before the interpreter starts.

    Args:
        user: the environment of the notebook's process.
        devices: CPU devices per rank; None leaves it to the platform.
        simulated: whether ranks are CPU processes of this machine, also if a GPU is present.

    >>> rank_environment({}, devices=2, simulated=True)["JAX_NUM_CPU_DEVICES"]
    '2'
    """
    env = {
        # Makes sets of strings iterate in the same order on every rank. Otherwise numbers would be silently wrong.
        "PYTHONHASHSEED": _hash_seed(user),
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
        # The execution pool is as large as the number of cores; two devices on few cores deadlock in correct programs.
        env["PJRT_NPROC"] = user.get("PJRT_NPROC", str(max(32, 4 * devices)))
    return env


def note_forced_devices(user: Mapping[str, str], devices: int | None) -> tuple[str, ...]:
    """Return a note if the user's XLA_FLAGS request another number of CPU devices than the ranks get.

    >>> note_forced_devices({"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, 8)
    ()
    """
    forced = find_forced_devices(user.get("XLA_FLAGS", ""))
    if forced is None or devices in (None, forced):
        return ()
    difference = f"XLA_FLAGS here asks for {forced} CPU devices, and each rank has {devices}"
    return (f"{difference}: %mhjax stop, then %mhjax start --devices {forced} gives each so many",)


def find_forced_devices(flags: str) -> int | None:
    """Return how many CPU devices XLA_FLAGS request; the last of several flags wins. None if they request none.

    >>> find_forced_devices("--xla_force_host_platform_device_count=8 --xla_force_host_platform_device_count=4")
    4
    """
    return int(found[-1]) if (found := _FORCED.findall(flags)) else None


def _hash_seed(user: Mapping[str, str]) -> str:
    seed = user.get("PYTHONHASHSEED", "")
    return seed if seed.isdecimal() else "0"


def _no_proxy(user: Mapping[str, str]) -> str:
    return add_to_no_proxy(user.get("no_proxy") or user.get("NO_PROXY") or "", _LOOPBACK)


def add_to_no_proxy(listed: str, addresses: Iterable[str]) -> str:
    """Add addresses to a no_proxy list, because gRPC uses the proxy for every address that is not listed.

    >>> add_to_no_proxy("a,b", ["b", "10.0.0.1"])
    'a,b,10.0.0.1'
    """
    named = [part for part in listed.split(",") if part]
    return ",".join([*named, *(address for address in addresses if address not in named)])


def _xla_flags(flags: str) -> str:
    if "--xla_cpu_collective_timeout_seconds" in flags:
        return flags
    return f"{flags} --xla_cpu_collective_timeout_seconds={COLLECTIVE_TIMEOUT_S}".strip()

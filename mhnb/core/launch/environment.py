"""Environment variables and GPUs of the ranks.

The variables of simulated ranks are computed from the user's own and the requested shape. Comments give the measured reasons.
The user's own settings win where both could apply. Messages name variables that came too late, never their values.

GPUs are assigned to the ranks of a machine from the output of nvidia-smi and CUDA_VISIBLE_DEVICES. A GPU is identified by its
UUID, which is the same for every process on every machine. This module uses no process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mhnb.core.preflight_facts import Gpu
from mhnb.errors import LaunchError

COLLECTIVE_TIMEOUT_S = 300
"""In seconds: a collective that waits longer raises on the rank.

XLA's own default is 30 minutes, longer than any user watches a stuck cell.
"""

_TIMEOUT_FLAG = f"--xla_cpu_collective_timeout_seconds={COLLECTIVE_TIMEOUT_S}"
_FORCED = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def rank_environment(user: Mapping[str, str], *, devices: int | None, simulated: bool) -> dict[str, str]:
    """Return the variables to set over the user's before the interpreter starts.

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
    """Return a note if XLA_FLAGS request another number of CPU devices.

    >>> note_forced_devices({"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, 8)
    ()
    """
    forced = find_forced_devices(user.get("XLA_FLAGS", ""))
    if forced is None or devices in (None, forced):
        return ()
    difference = f"XLA_FLAGS here requests {forced} CPU devices, but each rank has {devices}"
    return (f"{difference}. To change that: %mhjax stop, then %mhjax start --devices {forced}",)


def find_forced_devices(flags: str) -> int | None:
    """Return the number of CPU devices that XLA_FLAGS request, or None.

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
    """Add addresses to a no_proxy list; gRPC proxies all unlisted ones.

    >>> add_to_no_proxy("a,b", ["b", "10.0.0.1"])
    'a,b,10.0.0.1'
    """
    named = [part for part in listed.split(",") if part]
    return ",".join([*named, *(address for address in addresses if address not in named)])


def _xla_flags(flags: str) -> str:
    if "--xla_cpu_collective_timeout_seconds" in flags:
        return flags
    return f"{flags} {_TIMEOUT_FLAG}".strip()


# -- variables that are set after the start


_CONFIG_VARIABLES = (
    "JAX_DEBUG_INFS",
    "JAX_DEBUG_NANS",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_DISABLE_JIT",
    "JAX_ENABLE_X64",
    "JAX_LOG_COMPILES",
)
"""Read when JAX is imported; `jax.config.update` changes what they set at any time."""
_START_VARIABLES = ("JAX_COMPILATION_CACHE_DIR", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "XLA_FLAGS")
"""Read before the first program runs, and never again."""
_ACCELERATOR_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "LIBTPU_INIT_ARGS",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)
"""The same; without meaning for simulated devices."""


LATE_VARIABLES = "late_variables"
"""The fact of a rank with the changes that a cell has made."""


class StartVariables:
    """The variables that JAX reads only at its start, and later changes.

    Args:
        environment: of a process whose JAX has started, or whose ranks start now.
        devices: simulated CPU devices per rank; None for other devices.

    >>> environment = {"XLA_FLAGS": "--a"}
    >>> variables = StartVariables(environment, devices=None)
    >>> environment["XLA_FLAGS"] = "--a --b"
    >>> variables.take_changes(), variables.take_changes()
    ({'XLA_FLAGS': ''}, {})
    """

    def __init__(self, environment: Mapping[str, str], *, devices: int | None) -> None:
        self._environment = environment
        self._names = (*_CONFIG_VARIABLES, *_START_VARIABLES, *(_ACCELERATOR_VARIABLES if devices is None else ()))
        # What simulated ranks have in any case is no change.
        self._own_flags = {_TIMEOUT_FLAG, f"--xla_force_host_platform_device_count={devices}"}
        self._own_values = {} if devices is None else {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
        self._at_start = self._latest = self._read()

    def _read(self) -> dict[str, str | None]:
        return {name: self._environment.get(name) for name in self._names}

    def take_changes(self) -> dict[str, str]:
        """Return what changed since the last call, with the CPU devices requested.

        A value that JAX has read at its start is no change. The number is empty if the value requests none.
        """
        before, self._latest = self._latest, self._read()
        if self._latest == before:
            return {}
        return {
            name: _find_requested_devices(name, value or "")
            for name, value in self._latest.items()
            if value != before[name] and not self._is_as_at_start(name, value)
        }

    def _is_as_at_start(self, name: str, value: str | None) -> bool:
        at_start = self._at_start[name]
        if name != "XLA_FLAGS":
            return value in (at_start, self._own_values.get(name, at_start))
        return {*(value or "").split()} ^ {*(at_start or "").split()} <= self._own_flags


def _find_requested_devices(name: str, value: str) -> str:
    if name == "JAX_NUM_CPU_DEVICES":
        return value if value.isdecimal() else ""
    found = _FORCED.findall(value) if name == "XLA_FLAGS" else []
    return found[-1] if found else ""


@dataclass(frozen=True, slots=True)
class NotebookEnvironment:
    """The environment of the notebook's process, and how ranks get it."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Always the present ones."""
    is_local: bool = True
    """Whether a restart copies all variables, because the ranks are on this machine."""
    devices: int | None = None
    """Simulated CPU devices per rank; None for other devices."""

    def describe_missing_variable(self, name: str) -> str | None:
        """Describe how ranks get a variable that only the notebook has.

        >>> NotebookEnvironment({"TOKEN": "x"}, is_local=False).describe_missing_variable("TOKEN")[-59:]
        'To copy it: %mhjax stop, then %mhjax start with --env TOKEN'
        """
        if name not in self.variables:
            return None
        why = ", because they copied the notebook's environment when they started" if self.is_local else ""
        copy = "%mhjax restart --replay" if self.is_local else f"%mhjax stop, then %mhjax start with --env {name}"
        return (
            f"{name} is set in the notebook but not on the ranks{why}. "
            f'To set it: os.environ["{name}"] = ... in a %%mhjax cell. To copy it: {copy}'
        )

    def describe_late_variable(self, name: str, requested: str, *, in_notebook: bool) -> str:
        """Describe a variable that was changed after JAX had read it.

        Args:
            name: the variable.
            requested: the number of CPU devices that its value requests; empty for none.
            in_notebook: whether it was changed in the notebook and not in a cell of the ranks.

        >>> NotebookEnvironment().describe_late_variable("JAX_ENABLE_X64", "", in_notebook=False).partition(". ")[2]
        'To change it now: jax.config.update("jax_enable_x64", ...) in a %%mhjax cell'
        """
        what = (
            "in the notebook after the ranks had started, so they do not have the change"
            if in_notebook
            else "after JAX had read it, so the change has no effect on JAX"
        )
        return f"{name} was changed {what}. {self._describe_cure(name, requested, in_notebook=in_notebook)}"

    def _describe_cure(self, name: str, requested: str, *, in_notebook: bool) -> str:
        is_simulated = self.devices is not None
        if name in _CONFIG_VARIABLES:
            return f'To change it now: jax.config.update("{name.lower()}", ...) in a %%mhjax cell'
        if is_simulated and (requested or name == "JAX_NUM_CPU_DEVICES"):
            return f"To change the number of devices: %mhjax stop, then %mhjax start --devices {requested or 'D'}"
        if is_simulated and name == "JAX_PLATFORMS":
            other = "--profile gpu" if self.is_local else "without --devices"
            return f"Simulated devices are always CPUs. To use other devices: %mhjax stop, then %mhjax start {other}"
        # mhnb itself passes the flags of simulated devices to every host.
        if not self.is_local and not (is_simulated and name == "XLA_FLAGS"):
            return f"To apply it: %mhjax stop, then %mhjax start with --env {name}=..."
        # A restart keeps the number of ranks, which may be that of the visible GPUs.
        restart = "%mhjax stop, then %mhjax start" if name == "CUDA_VISIBLE_DEVICES" else "%mhjax restart --replay"
        return f"To apply it: {'' if in_notebook else 'set it in a cell without %%mhjax, then '}{restart}"


# -- assign GPUs to ranks


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    r"""Parse what `nvidia-smi --query-gpu=index,name,uuid --format=csv,noheader` lists, in the order of the indices.

    >>> parse_gpus("1, NVIDIA H200, GPU-b\n0, NVIDIA H200, GPU-a\n")[0]
    Gpu(name='NVIDIA H200', uuid='GPU-a')
    """
    found: dict[int, Gpu] = {}
    for line in text.splitlines():
        index, _, rest = line.partition(",")
        name, _, uuid = rest.rpartition(",")
        if index.strip().isdecimal():
            found[int(index)] = Gpu(name.strip(), uuid.strip())
    return tuple(gpu for _, gpu in sorted(found.items()))


def select_visible(gpus: Sequence[str], visible: str | None) -> tuple[str, ...]:
    """Return the GPUs that a process sees.

    Args:
        gpus: UUIDs of the machine, by index.
        visible: CUDA_VISIBLE_DEVICES; None if it is not set. As in CUDA, an entry that is not a GPU hides all that follow.

    >>> select_visible(["GPU-a", "GPU-b"], "1"), select_visible(["GPU-a", "GPU-b"], None)
    (('GPU-b',), ('GPU-a', 'GPU-b'))
    """
    if visible is None:
        return tuple(gpus)
    seen: list[str] = []
    for word in (part.strip() for part in visible.split(",")):
        if word.isdecimal() and int(word) < len(gpus):
            seen.append(gpus[int(word)])
        elif word.startswith("MIG-"):
            seen.append(word)
        elif word and (named := [uuid for uuid in gpus if word.startswith("GPU-") and uuid.startswith(word)]):
            seen.append(named[0])
        else:
            break
    return tuple(seen)


def divide_gpus(gpus: Sequence[str], ranks: Sequence[int], where: str) -> dict[int, tuple[str, ...]]:
    """Assign each rank of a machine its own adjacent GPUs.

    Args:
        gpus: the GPUs to assign.
        ranks: of this machine.
        where: the machine's name, for the error.

    Raises:
        LaunchError: there are fewer GPUs than ranks, or the ranks would have different numbers of GPUs.

    >>> divide_gpus(["a", "b", "c", "d"], [4, 5], "host")
    {4: ('a', 'b'), 5: ('c', 'd')}
    """
    gpus_per_rank, rest = divmod(len(gpus), len(ranks))
    if gpus_per_rank == 0 or rest:
        raise LaunchError(
            f"{where} has {len(gpus)} GPUs for {len(ranks)} ranks, but each rank needs the same number of its own\n"
            f"  choose -n and --per-host so that the ranks divide {len(gpus) or 'the GPUs'}, or list the GPUs in "
            "CUDA_VISIBLE_DEVICES; nvidia-smi -L lists them"
        )
    return {rank: tuple(gpus[at * gpus_per_rank : (at + 1) * gpus_per_rank]) for at, rank in enumerate(ranks)}


def find_shared_gpu(gpus: Mapping[int, Sequence[str]]) -> tuple[str, tuple[int, ...]] | None:
    """Return a GPU that several ranks would use, and those ranks.

    >>> find_shared_gpu({0: ["GPU-a"], 1: ["GPU-b", "GPU-a"]})
    ('GPU-a', (0, 1))
    """
    users: dict[str, list[int]] = {}
    for rank, own in gpus.items():
        for uuid in own:
            users.setdefault(uuid, []).append(rank)
    return next(((uuid, tuple(sorted(ranks))) for uuid, ranks in users.items() if len(ranks) > 1), None)

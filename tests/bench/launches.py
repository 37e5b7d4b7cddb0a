"""What the benchmark of the guard runs in each process: launches of several kinds, bare and guarded in turns inside one cell.

This module defines a call of each kind, what its clock covers, and what "bare" means: JAX's own path in the same
process. For a bare call, every function of JAX that mhnb has wrapped is restored, the hook behind JAX's dispatch is turned
off, and the programs are compiled and called in that state. In a process without mhnb, every call is bare.
"""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

__all__ = ["KINDS", "Hook", "Kind", "check_bare", "find_hooks", "lift", "measure", "name_kinds"]

_BIG = 15 * 2**20
"""Size of big data, in bytes."""


# -- bare


@dataclass(frozen=True, slots=True)
class Hook:
    """A name in JAX that mhnb has wrapped."""

    owner: Any
    """The module or class that has the attribute."""
    name: str
    wrapped: Any
    bare: Any
    """JAX's own function."""


def find_hooks() -> list[Hook]:
    """Find every attribute of a JAX module or class that mhnb has wrapped, with JAX's own function in `__wrapped__`."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] in ("jax", "jaxlib")]
    owners: dict[int, Any] = {id(module): module for module in modules}
    for module in modules:
        owners |= {id(value): value for value in _values(module) if isinstance(value, type) and _is_of_jax(value)}
    return [
        Hook(owner, name, value, bare)
        for owner in owners.values()
        for name, value in list(vars(owner).items())
        if (bare := _find_bare(value)) is not None
    ]


def _values(module: ModuleType) -> list[Any]:
    return list(vars(module).values())


def _is_of_jax(kind: type) -> bool:
    return str(kind.__module__).partition(".")[0] in ("jax", "jaxlib")


def _find_bare(value: Any) -> Any:
    function = value.__func__ if isinstance(value, staticmethod) else value
    if not _is_of_mhnb(function) or not hasattr(function, "__wrapped__"):
        return None
    while _is_of_mhnb(function):
        function = function.__wrapped__
    return staticmethod(function) if isinstance(value, staticmethod) else function


def _is_of_mhnb(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return _is_own_file(code.co_filename) if code is not None else type(function).__module__.partition(".")[0] == "mhnb"


def _is_own_file(filename: str) -> bool:
    mhnb = sys.modules.get("mhnb")
    return mhnb is not None and filename.startswith(str(Path(str(mhnb.__file__)).parent))


@contextmanager
def lift(hooks: Sequence[Hook]) -> Iterator[None]:
    """Restore JAX without mhnb, in this thread, for the duration of the block."""
    from jax._src import api

    try:
        for hook in hooks:
            setattr(hook.owner, hook.name, hook.bare)
        before = api._post_hook_state.swap_local(None)
        try:
            yield
        finally:
            api._post_hook_state.swap_local(before)
    finally:
        for hook in hooks:
            setattr(hook.owner, hook.name, hook.wrapped)


def check_bare(call: Callable[[], Any]) -> None:
    """Make a call and check that no line of mhnb runs in it.

    Raises:
        RuntimeError: a line of mhnb runs, so the call is not bare.
    """
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and _is_own_file(frame.f_code.co_filename):
            entered.add(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    if entered:
        raise RuntimeError(f"the bare call is not bare: it ran {', '.join(sorted(entered))}")


# -- kinds of launches


class Kind(ABC):
    """One kind of launch: a program of its own, and its inputs."""

    waits = True
    """Whether the clock includes waiting for each call; otherwise only the last call of a turn is waited for."""
    calls = 10
    """Calls per turn. A number, not a time, because all ranks must make the same number of calls."""
    often = 1
    """Multiple of the number of turns of other kinds."""

    def __init__(self, leaves: int) -> None:
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding
        from jax.sharding import PartitionSpec as P

        self.leaves = leaves
        mesh = Mesh(np.array(jax.devices()), ("data",))
        self.rows, self.whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
        self.program = self.compile()

    @abstractmethod
    def compile(self) -> Any:
        """Return a program on a function object of its own, so that it shares nothing with another one."""

    @abstractmethod
    def make(self) -> Any:
        """Return the inputs of the first call, created now and so under the guard of this cell."""

    @abstractmethod
    def call(self, given: Any) -> tuple[Any, Any]:
        """Call the program once; return the inputs of the next call, and the array to wait for."""

    def spread(self, rows: int = 8, width: int = 1) -> Any:
        """Return a sharded array of ones, with that many rows per device."""
        import jax
        import numpy as np

        values = np.ones((rows * jax.device_count(), width), np.float32)
        return jax.make_array_from_callback(values.shape, self.rows, lambda index: values[index])

    def replicate(self, *shape: int) -> Any:
        """Return a replicated array of small numbers."""
        import jax
        import numpy as np

        values = np.random.default_rng(0).normal(size=shape).astype(np.float32) / 10
        return jax.make_array_from_callback(shape, self.whole, lambda index: values[index])

    def tree(self) -> list[Any]:
        """Return that many small replicated arrays."""
        return [self.replicate(4) for _ in range(self.leaves)]


class SmallCollective(Kind):
    """A sum of one small array over all ranks."""

    calls, often = 20, 6

    def compile(self) -> Any:
        import jax

        return jax.jit(lambda x: x.sum(), out_shardings=self.whole)

    def make(self) -> Any:
        return self.spread()

    def call(self, given: Any) -> tuple[Any, Any]:
        return given, self.program(given)


class SmallWithoutCollective(SmallCollective):
    """A program of all ranks without a collective, on one small array."""

    waits, calls = False, 500

    def compile(self) -> Any:
        import jax

        return jax.jit(lambda x: x + 1)


class SmallLocal(SmallWithoutCollective):
    """A program of this process only, on one small array."""

    def make(self) -> Any:
        import jax.numpy as jnp

        return jnp.ones(8)


class TreeCollective(Kind):
    """A sum over all ranks, added to many arrays; the next call gets the result of this one."""

    donates: tuple[int, ...] = ()

    def compile(self) -> Any:
        import jax

        def add_total(tree: Any, x: Any) -> Any:
            total = x.sum()
            return [leaf + total for leaf in tree], total

        return jax.jit(add_total, donate_argnums=self.donates, out_shardings=self.whole)

    def make(self) -> Any:
        return self.tree(), self.spread()

    def call(self, given: Any) -> tuple[Any, Any]:
        tree, x = given
        tree, total = self.program(tree, x)
        return (tree, x), total


class TreeDonated(TreeCollective):
    """The same program with donated arrays."""

    donates = (0,)


class TreeWithoutCollective(Kind):
    """A program of all ranks without a collective, on many arrays; the next call gets the result of this one."""

    def compile(self) -> Any:
        import jax

        return jax.jit(lambda tree: [leaf + 1 for leaf in tree])

    def make(self) -> Any:
        return self.tree()

    def call(self, given: Any) -> tuple[Any, Any]:
        tree = self.program(given)
        return tree, tree[0]


class TreeLocal(TreeWithoutCollective):
    """A program of this process only, on many arrays."""

    def make(self) -> Any:
        import jax.numpy as jnp

        return [jnp.ones(4) for _ in range(self.leaves)]


class TrainingStep(Kind):
    """A step of adamw: 100 layers with a weight and a bias are 601 arrays of parameters and optimizer state."""

    width, batch, calls = 128, 288, 2

    def compile(self) -> Any:
        import jax
        import jax.numpy as jnp
        import optax  # type: ignore[import-untyped]

        self.optimizer = optax.adamw(1e-3)

        def loss(params: Any, x: Any) -> Any:
            for weight, bias in params:
                x = jnp.tanh(x @ weight + bias)
            return jnp.mean((x - 1) ** 2)

        def step(params: Any, state: Any, x: Any) -> Any:
            value, slopes = jax.value_and_grad(loss)(params, x)
            updates, state = self.optimizer.update(slopes, state, params)
            return optax.apply_updates(params, updates), state, value

        # Everything but the batch is the same on every device; one sharding would not fit the state's tree.
        return jax.jit(step, donate_argnums=(0, 1), out_shardings=self.whole)

    def make(self) -> Any:
        import jax

        params = [(self.replicate(self.width, self.width), self.replicate(self.width)) for _ in range(self.leaves // 6)]
        state = jax.jit(self.optimizer.init, out_shardings=self.whole)(params)
        return params, state, self.spread(self.batch, self.width)

    def call(self, given: Any) -> tuple[Any, Any]:
        params, state, x = given
        params, state, value = self.program(params, state, x)
        return (params, state, x), value


class HostArgument(Kind):
    """A collective with 15 MB of NumPy data as an argument."""

    def compile(self) -> Any:
        import jax

        return jax.jit(lambda values, x: values[0] + x.sum(), out_shardings=self.whole)

    def make(self) -> Any:
        return _big_values(), self.spread()

    def call(self, given: Any) -> tuple[Any, Any]:
        return given, self.program(*given)


class Replicated(Kind):
    """Creation of a replicated array from 15 MB of host data."""

    def compile(self) -> Any:
        return None

    def make(self) -> Any:
        return _big_values()

    def call(self, given: Any) -> tuple[Any, Any]:
        import jax

        return given, jax.make_array_from_callback(given.shape, self.whole, lambda index: given[index])


def _big_values() -> Any:
    """Return data with the alignment of big NumPy arrays; JAX would use better aligned data without a copy."""
    import numpy as np

    memory = np.ones(_BIG + 128, np.uint8)
    start = -memory.ctypes.data % 64 + 16
    values = memory[start : start + _BIG].view(np.float32)
    values[:] = 1
    return values


KINDS: dict[str, type[Kind]] = {
    "collective, one small argument": SmallCollective,
    "no collective, one small argument": SmallWithoutCollective,
    "collective, N leaves": TreeCollective,
    "collective, N leaves, donated": TreeDonated,
    "no collective, N leaves": TreeWithoutCollective,
    "a training step, 601 leaves": TrainingStep,
    "collective, NumPy argument of 15 MB": HostArgument,
    "making replicated data of 15 MB": Replicated,
    "one process, one small argument": SmallLocal,
    "one process, N leaves": TreeLocal,
}
"""By the name of the row; a row with N leaves occurs once for each requested number."""


def name_kinds(leaves: Sequence[int]) -> list[tuple[str, int]]:
    """Return every row that is measured: its kind and its number of leaves.

    >>> name_kinds([10])[1:3]
    [('no collective, one small argument', 1), ('collective, N leaves', 10)]
    """
    counts = {kind: leaves if "N leaves" in kind else (601,) if "601" in kind else (1,) for kind in KINDS}
    return [(kind, count) for kind in KINDS for count in counts[kind]]


# -- turns

_kinds: dict[tuple[str, int, bool], Kind] = {}
"""By row, and whether bare. Each program is compiled once per process and used by all cells."""


class _Side:
    """One side of a row in one cell: bare or guarded."""

    def __init__(self, row: tuple[str, int], hooks: Sequence[Hook], *, bare: bool) -> None:
        self._hooks = hooks if bare else None
        self.seconds: list[float] = []
        with self._jax_state():
            if (*row, bare) not in _kinds:
                _kinds[*row, bare] = KINDS[row[0]](row[1])
            self._kind = _kinds[*row, bare]
            self._inputs = self._kind.make()
            # The second call compiles again, because its input is the result of the first call.
            self._call_times(3)
            if bare:
                check_bare(lambda: self._call_times(1))

    def measure_turn(self) -> None:
        """Measure one turn."""
        with self._jax_state():
            # The first calls after JAX was changed or restored have cold caches.
            self._call_times(2)
            calls = max(3, min(self._kind.calls, 5000 // max(1, self._kind.leaves)))
            started = time.perf_counter()
            self._call_times(calls)
            self.seconds.append((time.perf_counter() - started) / calls)

    def _jax_state(self) -> AbstractContextManager[None]:
        return nullcontext() if self._hooks is None else lift(self._hooks)

    def _call_times(self, calls: int) -> None:
        call, inputs = self._kind.call, self._inputs
        result: Any = None
        for _ in range(calls):
            inputs, result = call(inputs)
            if self._kind.waits:
                result.block_until_ready()
        result.block_until_ready()
        self._inputs = inputs


def measure(row: tuple[str, int], turns: int, path: str) -> None:
    """Measure one row of `name_kinds`, bare and guarded in turns; the first rank writes each turn's seconds per call."""
    import jax

    hooks = find_hooks()
    bare, guarded = _Side(row, hooks, bare=True), _Side(row, hooks, bare=False)
    for turn in range(turns * KINDS[row[0]].often):
        for side in (bare, guarded) if turn % 2 else (guarded, bare):
            side.measure_turn()
    if jax.process_index() == 0:
        Path(path).write_text(json.dumps({"bare": bare.seconds, "guarded": guarded.seconds}))

"""Exercises of the lesson: from bytes to seconds.

The right values come from formulas for rings, with the sizes of the programs, and not from the rows that an answer is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mhnb.teach.check import Budget, assert_equal, assert_shards, call_answer, check_budget, measure
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer

_KIB, _MIB = 2**10, 2**20


class _Link(NamedTuple):
    alpha: float
    """Seconds until an empty message arrives."""
    beta: float
    """Bytes that a device sends per second."""


class _Machine(NamedTuple):
    flops: float
    memory: float
    """Bytes per second of a device's memory."""
    inside: _Link
    """Between devices of one host, or of one slice."""
    network: _Link


_H100 = _Machine(494.5e12, 3.35e12, _Link(3.4e-6, 450e9), _Link(14e-6, 50e9))
"""NVIDIA's figures, and latencies from NCCL (src/graph/tuning.cc); the lesson has the links."""
_V5E = _Machine(197e12, 819e9, _Link(1e-6, 90e9), _Link(14e-6, 3.125e9))


def _time_ring(op: str, n: int, nbytes: float, link: _Link) -> float:
    """Return the seconds of a collective in a ring.

    Each step has its latency. Source: Patarasuk and Yuan (2009), as in "How to Scale Your Model", chapter 3.

    Args:
        op: all-reduce, reduce-scatter or all-gather.
        n: devices in the ring.
        nbytes: the whole array, as each device holds it before an all-reduce and after an all-gather.
        link: the slowest of the ring.
    """
    n_steps = _count_steps(op, n)
    return n_steps * link.alpha + n_steps * nbytes / n / link.beta


def _count_steps(op: str, n: int) -> int:
    return 2 * (n - 1) if op == "all-reduce" else n - 1


def _mesh(process: ProcessInfo) -> Any:
    """Return a mesh with one row per host, as in the lesson."""
    import jax

    auto = (jax.sharding.AxisType.Auto,) * 2
    devices = np.array(jax.devices()).reshape(process.process_count, process.local_device_count)
    return jax.sharding.Mesh(devices, ("data", "model"), axis_types=auto)


def _shape(mesh: Any, shape: tuple[int, ...], spec: Any) -> Any:
    """Return an abstract float32 array."""
    import jax

    return jax.ShapeDtypeStruct(shape, np.float32, sharding=jax.sharding.NamedSharding(mesh, spec))


def _assert_close(got: Any, wanted: float, what: str, *, unit: str = "", known: Mapping[str, float]) -> None:
    """Check a number to three digits.

    Args:
        got: the answer's value.
        wanted: by a formula.
        what: the value's name.
        unit: shown after it.
        known: what frequent mistakes return, by the note on each.
    """
    _check_number(got, what)
    if not np.isclose(got, wanted, rtol=1e-3):
        note = next((note for note, value in known.items() if np.isclose(got, value, rtol=1e-3)), "")
        raise WrongAnswer(f"{what} is {got:.4g}{unit}", expected=f"{wanted:.4g}{unit}", note=note)


def _check_number(got: Any, what: str) -> None:
    if not isinstance(got, int | float | np.number) and getattr(got, "shape", None) != ():
        raise WrongAnswer(f"{what} is {got!r}", expected="a number")


# -- latency


_LAYERS, _NUMBERS = 16, 8


def _one_latency(process: ProcessInfo, unit_sums: Any) -> str:
    import jax

    call_answer(callable, unit_sums, what="of a device's vectors")
    n, spec = process.device_count, jax.P("i")
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    mapped = jax.jit(jax.shard_map(unit_sums, mesh=mesh, in_specs=spec, out_specs=spec))
    values = np.random.default_rng(16).normal(size=(n, _LAYERS, _NUMBERS)).astype(np.float32)
    rows = values.reshape(n * _LAYERS, _NUMBERS)
    x = jax.make_array_from_callback(rows.shape, jax.sharding.NamedSharding(mesh, spec), rows.__getitem__)
    got, sums = mapped(x), values.sum(axis=0)
    assert_equal(tuple(got.shape), rows.shape, "the shape of all devices' results", note="Keep one vector per layer")
    wanted = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    assert_shards(got, np.tile(wanted, (n, 1)), "unit_sums(parts)", process)
    usage = check_budget(Budget({"all-reduce": 1}), mapped, x)
    before = _LAYERS * _time_ring("all-reduce", n, 4 * _NUMBERS, _H100.network)
    after = _time_ring("all-reduce", n, 4 * _NUMBERS * _LAYERS, _H100.network)
    return f"it runs {usage}: {1e3 * after:.2f} ms on InfiniBand instead of {1e3 * before:.2f} ms"


# -- from collectives to seconds


class _Case(NamedTuple):
    """A program with one collective, and its time in a ring."""

    what: str
    body: Callable[[Any], Any]
    """Of one device's float32 numbers."""
    n_numbers: int
    """On one device."""
    op: str
    n: int
    nbytes: int
    """The whole array, as for `_time_ring`."""
    crosses: bool
    times: int = 1

    def estimate(self, machine: _Machine) -> float:
        """Return the seconds of its ring."""
        link = machine.network if self.crosses else machine.inside
        return self.times * _time_ring(self.op, self.n, self.nbytes, link)

    def list_mistakes(self, machine: _Machine) -> dict[str, float]:
        """Return what frequent mistakes return, by the note on each."""
        link = machine.network if self.crosses else machine.inside
        network = _time_ring(self.op, self.n, self.nbytes, machine.network)
        n_steps = _count_steps(self.op, self.n)
        contributed = self.nbytes / self.n if self.op == "all-gather" else self.nbytes
        every_step = n_steps * (link.alpha + n_steps * self.nbytes / self.n / link.beta)
        return {
            "That is without latency": _time_ring(self.op, self.n, self.nbytes, link._replace(alpha=0)),
            "That counts the latency of a single step": self.estimate(machine)
            - self.times * link.alpha * (n_steps - 1),
            "That is with the bytes that a device contributes": self.times
            * (n_steps * link.alpha + contributed / link.beta),
            "That sends all bytes of the ring in each step": self.times * every_step,
            "That is one run of it": self.estimate(machine) / self.times,
            "That is over the network": network,
        }


def _list_cases(process: ProcessInfo) -> tuple[_Case, ...]:
    from jax import lax

    hosts, local = process.process_count, process.local_device_count

    def scatter_in_loop(v: Any) -> Any:
        def one(total: Any, _: Any) -> tuple[Any, None]:
            part = lax.psum_scatter(v + total[0], "data", tiled=True)
            return lax.dynamic_update_slice(total, part, (0,)), None

        return lax.scan(one, v, length=5)[0]

    return (
        _Case("an all-reduce over hosts", lambda v: lax.psum(v, "data"), _MIB, "all-reduce", hosts, 4 * _MIB, True),
        _Case(
            "an all-gather inside each host",
            lambda v: lax.all_gather(v, "model", tiled=True),
            _MIB,
            "all-gather",
            local,
            4 * _MIB * local,
            False,
        ),
        _Case(
            "a reduce-scatter over hosts in a loop of 5",
            scatter_in_loop,
            _MIB,
            "reduce-scatter",
            hosts,
            4 * _MIB,
            True,
            5,
        ),
    )


def _time_of(process: ProcessInfo, time_of: Any) -> str:
    import jax

    call_answer(callable, time_of, what="of collectives and a machine")
    mesh, spec, total = _mesh(process), jax.P(("data", "model")), 0.0
    rows: list[Any] = []
    for case in _list_cases(process):
        mapped = jax.jit(jax.shard_map(case.body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
        found = measure(mapped, _shape(mesh, (process.device_count * case.n_numbers,), spec))
        for name, machine in {"an H100": _H100, "a v5e": _V5E}.items():
            what = f"time_of for {case.what}, {case.nbytes // _MIB} MiB on {name},"
            wanted, known = case.estimate(machine), case.list_mistakes(machine)
            _assert_close(time_of(found, machine), wanted, what, unit=" s", known=known)
        rows.extend(found)
        total += wanted
    last = {"That is the time of the last one alone": wanted}
    _assert_close(time_of(rows, _V5E), total, "time_of for all of them on a v5e", unit=" s", known=last)
    return "three programs on two machines, inside hosts and across them, take the time of their rings"


# -- batch and efficiency


def _count_tokens(n: int, n_params: int, itemsize: int, machine: _Machine, operations: int = 4) -> int:
    """Return the tokens per device that hide a ring.

    A backward pass has 4 operations per parameter and token.
    """
    seconds = _time_ring("all-reduce", n, itemsize * n_params, machine.network)
    return math.ceil(seconds * machine.flops / (operations * n_params))


def _without_latency(machine: _Machine) -> _Machine:
    return machine._replace(network=machine.network._replace(alpha=0))


def _smallest_batch(process: ProcessInfo, smallest_batch: Any) -> str:
    del process
    call_answer(callable, smallest_batch, what="of n, n_params, itemsize and machine")
    for n, n_params, itemsize, machine, name in (
        (6, 10**11, 4, _H100, "H100s"),
        (6, 10**11, 2, _V5E, "v5e chips"),
        (512, 10**10, 4, _H100, "H100s"),
        (512, 10**7, 4, _H100, "H100s"),
    ):
        got = smallest_batch(n, n_params, itemsize, machine)
        what = f"smallest_batch for {n} {name}, {n_params:.0e} parameters and {itemsize} bytes each"
        _check_number(got, what)
        if not float(got).is_integer():
            raise WrongAnswer(f"{what} is {got:.1f}", expected="a whole number")
        wanted, bare = (_count_tokens(n, n_params, itemsize, each) for each in (machine, _without_latency(machine)))
        if got != wanted:
            known = {
                _count_tokens(n, n_params, itemsize, machine, operations=6): "That counts the forward pass, too",
                wanted - 1: f"With {wanted - 1} tokens, the ring takes longer than the backward pass",
                bare: "That is what transfer alone needs",
            }
            raise WrongAnswer(f"{what} is {got}", expected=f"{wanted}", note=known.get(int(got), ""))
    return "with few devices, many devices, and where latency decides"


def _step_time(n: int, tokens_each: float) -> float:
    """Return the seconds of a step of the lesson's block, without overlap."""
    n_params = 2 * 4096 * 16384
    compute = 6 * tokens_each * n_params / _H100.flops
    return compute + _time_ring("all-reduce", n, 4 * n_params, _H100.network)


def _time_with_input(n: int, tokens_each: float) -> float:
    """Return the seconds of a step that also waits for its input."""
    return _step_time(n, tokens_each) + 5e-3


def _strong_efficiency(process: ProcessInfo, efficiency: Any) -> str:
    del process
    call_answer(callable, efficiency, what="of time, n and n_tokens")
    waiting = ", if each step also waits 5 ms for its input,"
    for time, words, n, n_tokens in (
        (_step_time, "", 2, 65536),
        (_step_time, "", 8, 65536),
        (_time_with_input, waiting, 8, 65536),
        (_step_time, "", 64, 1 << 20),
    ):
        alone, shared = time(1, n_tokens), time(n, n_tokens / n)
        wanted = alone / n / shared
        known = {
            "That is weak scaling, with the whole batch on each device": alone / time(n, n_tokens),
            f"That is how much faster {n} devices are": alone / shared,
            "That compares with one device that has only a part of the batch": time(1, n_tokens / n) / shared,
            "That is the inverse": 1 / wanted,
            "That is in percent": 100 * wanted,
        }
        what = f"efficiency of {n} devices for {n_tokens} tokens{words}"
        _assert_close(efficiency(time, n, n_tokens), wanted, what, known=known)
    return f"64 devices have an efficiency of {wanted:.0%} for {n_tokens} tokens"


# -- layouts


_D, _F = 4096, 16384
_Estimate: TypeAlias = Callable[[int, int, int], float]
"""Takes tokens, hosts and devices per host; returns the seconds of a step's communication."""


def _time_data_parallel(n_tokens: int, hosts: int, local: int) -> float:
    """Return the time of one all-reduce of all gradients over all devices."""
    del n_tokens
    return _time_ring("all-reduce", hosts * local, 8 * _D * _F, _H100.network)


def _time_split_model(n_tokens: int, split: int, batch: int, links: tuple[_Link, _Link]) -> float:
    """Return the time with weights split over one axis, tokens over another.

    The activations are summed over the axis that splits the model, and the gradients of a part over the other axis.
    """
    activations = _time_ring("all-reduce", split, 4 * n_tokens // batch * _D, links[0])
    return activations + _time_ring("all-reduce", batch, 8 * _D * _F / split, links[1])


_LAYOUTS: Mapping[str, _Estimate] = {
    "data parallel": _time_data_parallel,
    "model inside a host": lambda n_tokens, hosts, local: _time_split_model(
        n_tokens, local, hosts, (_H100.inside, _H100.network)
    ),
    "model over hosts": lambda n_tokens, hosts, local: _time_split_model(
        n_tokens, hosts, local, (_H100.network, _H100.inside)
    ),
}
_BATCHES = (8192, 131072)


def _fastest_layout(process: ProcessInfo, fastest: Any) -> str:
    if not isinstance(fastest, dict) or set(fastest) != set(_BATCHES):
        raise WrongAnswer(f"fastest is {fastest!r}", expected="a dict with the keys 8192 and 131072")
    for n_tokens in _BATCHES:
        name = fastest[n_tokens]
        if not isinstance(name, str) or name not in _LAYOUTS:
            raise WrongAnswer(f"the layout for {n_tokens} tokens is {name!r}", expected=f"one of {', '.join(_LAYOUTS)}")
        times = {
            each: time(n_tokens, process.process_count, process.local_device_count) for each, time in _LAYOUTS.items()
        }
        if times[name] > min(times.values()):
            raise WrongAnswer(
                f"with {n_tokens} tokens, {name} communicates for {1e3 * times[name]:.1f} ms",
                expected=f"{1e3 * min(times.values()):.1f} ms",
            )
    return "with few tokens, the activations cross hosts, and with many, the gradients do"


def _adapter_step(adapter: Any, w: Any, x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def loss(adapter: Any) -> Any:
        a, b = adapter
        return jnp.mean((x @ w + (x @ a) @ b - x) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, adapter, jax.grad(loss)(adapter))


def _adapter_specs(process: ProcessInfo, w_spec: Any, x_spec: Any) -> str:
    import jax

    mesh, rank = _mesh(process), 16
    w = _place("w", (_D, _D), mesh, w_spec, 16 * _MIB)
    x = _place("x", (8192, _D), mesh, x_spec, 64 * _MIB)
    adapter = tuple(_shape(mesh, shape, jax.P()) for shape in ((_D, rank), (rank, _D)))
    any_number = dict.fromkeys(("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"), 99)
    budget = Budget(any_number, nbytes_across_hosts=256 * _KIB)
    return f"it runs {check_budget(budget, _adapter_step, adapter, w, x)}"


def _place(name: str, shape: tuple[int, ...], mesh: Any, spec: Any, limit: int) -> Any:
    """Return an abstract array of at most `limit` bytes per device."""
    import jax

    if not isinstance(spec, jax.sharding.PartitionSpec):
        raise WrongAnswer(f"{name}_spec is a {type(spec).__name__}", expected="a PartitionSpec: P(...)")
    if len(spec) > len(shape):
        raise WrongAnswer(
            f"{name}_spec {spec} has {len(spec)} entries", expected=f"at most one for each of {len(shape)} dims"
        )
    try:
        shard_shape = jax.sharding.NamedSharding(mesh, spec).shard_shape(shape)
    except (ValueError, KeyError, IndexError) as error:
        raise WrongAnswer(f"{name}_spec {spec} does not fit float32{list(shape)} on this mesh: {error}") from None
    nbytes = 4 * math.prod(shard_shape)
    if nbytes > limit:
        raise WrongAnswer(
            f"a device holds {nbytes // _MIB} MiB of {name} ({tuple(shard_shape)} of {shape})",
            expected=f"at most {limit // _MIB} MiB",
        )
    return _shape(mesh, shape, spec)


LESSON = Lesson(
    "16_cost.ipynb",
    "What does it cost?",
    (
        Prediction(
            "ops_per_byte",
            "x has 64 rows of 4096 numbers and w has 4096 rows of 4096, all float32. About how many operations per byte has x @ w?",
            (2, 31, 4096),
            "Almost all bytes are those of w, and each of its numbers is used for 64 rows: 128 operations for 4 bytes, a little less"
            " with the bytes of x and of the result.",
        ),
        Prediction(
            "batch_times_four",
            "The batch grows from 8192 to 32768 tokens. By which factor do the bytes grow that a device sends for the step?",
            (1, 2, 4),
            "Nothing changes: a device sends the sum of its gradients over its tokens, which has the shape of the weights, however"
            " many tokens there are.",
        ),
        Exercise(
            "one_latency",
            "sixteen sums, one latency",
            "Change unit_sums(parts) so that it runs one all-reduce for all layers, and returns the same.",
            _one_latency,
            "easy",
            (
                "psum takes an array with any number of dims, and adds each of its numbers over the devices.",
                "Only the sum needs the other devices. The norms can be computed after it, one for each layer.",
            ),
        ),
        Exercise(
            "time_of",
            "from collectives to seconds",
            "Write time_of(collectives, machine): the seconds of all collectives in rings, one after the other.",
            _time_of,
            "medium",
            (
                "A collective has a link, a number of steps and a number of bytes that its ring sends.",
                "An all-reduce of n devices has 2 (n - 1) steps, the other two have n - 1; the size of a group is n.",
                "Multiply by the number of runs, and use the ring's bytes, not those that a device contributes.",
            ),
        ),
        Exercise(
            "smallest_batch",
            "the smallest batch",
            "Write smallest_batch(n, n_params, itemsize, machine): tokens per device at which the backward pass hides the ring.",
            _smallest_batch,
            "medium",
            (
                "Write down both times first: that of the backward pass for b tokens, and that of the ring.",
                "A ring of n devices has 2 (n - 1) steps, and each sends one n-th of the gradients. Each step has its latency.",
                "Solve for b, and round up. The number of parameters remains in the term with the latency.",
            ),
        ),
        Exercise(
            "strong_efficiency",
            "the efficiency of strong scaling",
            "Write efficiency(time, n, n_tokens): the part of the ideal speed of n devices that a fixed batch gets.",
            _strong_efficiency,
            "easy",
            (
                "How many tokens does each device have, if all of them share one batch?",
                "Ideally, n devices need the n-th part of the time of one.",
            ),
        ),
        Exercise(
            "fastest_layout",
            "which layout is fastest?",
            "For 8192 and for 131072 tokens, name the layout that communicates for the shortest time on h100.",
            _fastest_layout,
            "medium",
            (
                "Apply your time_of to mhnb.collectives(step, ...), with shaped(...) arguments for each layout.",
                "Which arrays does each layout send over the network, and which of them grow with the batch?",
            ),
        ),
        Exercise(
            "adapter_specs",
            "train little, send little",
            "Choose w_spec and x_spec: 16 MiB of w and 64 MiB of x per device, and at most 256 KiB for other hosts.",
            _adapter_specs,
            "hard",
            (
                "16 MiB is a quarter of w, and there are four hosts. So what is left to split x over?",
                "A product whose weights are split by columns needs all of a token's numbers, but no sum.",
                "If w is split over hosts, x must not be: every host then has all tokens, and each device of it one half.",
            ),
        ),
    ),
)

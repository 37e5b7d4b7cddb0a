"""What a rank finds in its memory: the names of arrays, buffers that are counted once, and the line of an assignment."""

from __future__ import annotations

import dataclasses
import linecache
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mhnb.core.memory import ArrayMemory, RankMemory
from mhnb.rank import memory
from mhnb.rank.execution.cell_names import cell_file
from mhnb.rank.execution.exceptions import find_failed_allocation
from mhnb.rank.jax_private import list_buffers
from mhnb.rank.memory import describe_failure, describe_memory

TOO_LARGE = 1 << 46
"""Bytes, which no machine has."""


@pytest.fixture
def cell_7() -> Iterator[int]:
    """The number of a cell whose text is known."""
    name = cell_file(7)
    linecache.cache[name] = (0, None, ["x = make()\n", "for y in z:\n", "    params['w'] = y\n"], name)
    yield 7
    del linecache.cache[name]


def named(found: RankMemory) -> dict[str, ArrayMemory]:
    """Return the arrays with a name by their first name."""
    return {array.names[0]: array for array in found.arrays if array.names}


class Pair(NamedTuple):
    """A pytree with names."""

    left: Any
    right: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    """A pytree that JAX flattens."""

    weights: Any


class Model:
    """An object that JAX does not know, and that raises when it is looked at."""

    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def __repr__(self) -> str:
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_arrays_have_the_names_of_the_notebook() -> None:
    """Names lead through containers and pytrees, not into other objects, and are written as the user would type them."""
    arrays = [jnp.full(2 + at, 1.0) for at in range(8)]
    namespace = {
        "x": arrays[0],
        "params": {"w": arrays[1], 3: [arrays[2]]},
        "pair": Pair(arrays[3], (arrays[4],)),
        "state": State({"b": arrays[5]}),
        "model": Model(arrays[6]),
        "_own": arrays[7],
    }
    found = named(describe_memory(namespace))
    assert {name: array.shape for name, array in found.items()} == {
        "x": (2,),
        "params['w']": (3,),
        "params[3][0]": (4,),
        "pair.left": (5,),
        "pair.right[0]": (6,),
        "state.weights['b']": (7,),
        "_own": (9,),
    }


def test_array_with_several_names_counts_once() -> None:
    """Its shortest name is the first, and others follow."""
    x = jnp.ones(11)
    found = [a for a in describe_memory({"tree": {"x": x}, "x": x, "_oh": {4: x}}).arrays if a.shape == (11,)]
    assert [array.names for array in found] == [("x", "tree['x']", "Out[4]")]


def test_unnamed_arrays_with_equal_facts_are_one_entry() -> None:
    """What no name leads to is counted."""
    kept = [jnp.full(23, at) for at in range(3)]
    (array,) = [a for a in describe_memory({}).arrays if a.shape == (23,)]
    assert (array.names, array.count) == ((), len(kept))


def test_deleted_arrays_are_left_out() -> None:
    """A donated or deleted array takes no memory."""
    x = jnp.ones(29)
    x.delete()
    assert named(describe_memory({"x": x})) == {}


def test_arrays_that_share_a_buffer_count_once() -> None:
    """A shard of an array is a name of that array, and its bytes are not added to the device's."""
    x = jnp.ones((64, 1024))
    before = describe_memory({"x": x}).devices[0].used
    shard = x.addressable_shards[0].data
    view = jax.make_array_from_single_device_arrays(x.shape, x.sharding, [x])
    found = describe_memory({"x": x, "view": view, "a": shard})
    assert found.devices[0].used == before
    (array,) = [a for a in found.arrays if a.shape == (64, 1024)]
    assert len(array.names) >= 2
    assert sum(name.endswith(" (shares its memory)") for name in array.names) == len({id(x), id(view), id(shard)}) - 1


def test_keys_are_shown_as_keys() -> None:
    """The numbers behind an array of keys are its memory."""
    keys = jax.random.split(jax.random.key(0), 5)
    array = named(describe_memory({"keys": keys}))["keys"]
    assert (array.shape, array.dtype, array.nbytes) == ((5,), "key<fry>", 40)


def test_numpy_arrays_are_those_of_the_host() -> None:
    """Large ones are listed, views of one as one, and not on any device."""
    data = np.ones(1 << 18)
    found = named(describe_memory({"data": data, "rows": data[:100], "small": np.ones(8)}))
    assert (found["data"].scope, found["data"].nbytes, found["data"].names) == ("host", 2 << 20, ("data", "rows"))
    assert "small" not in found


def test_value_that_cannot_be_searched_is_a_note() -> None:
    """A class of the user's may raise when JAX flattens it; the other names are found."""

    class Broken:
        pass

    def refuse(_: Any) -> Any:
        raise RuntimeError("no\nway")

    jax.tree_util.register_pytree_node(Broken, refuse, lambda _, children: children)
    found = describe_memory({"bad": [Broken()], "x": jnp.ones(2)})
    assert found.problems == ("bad[0] could not be searched for arrays: RuntimeError: no",)
    assert "x" in named(found)


@pytest.mark.slow
def test_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many values only the first are searched, and the report says so; arrays are listed up to a limit."""
    monkeypatch.setattr(memory, "_MAX_NODES", 10)
    arrays = [jnp.full(31 + at, 1.0) for at in range(20)]
    found = describe_memory({"arrays": arrays}, limit=3)
    assert found.problems == ("only the first 10 values were searched for arrays, so some arrays have no name here",)
    assert len(found.arrays) == 3
    assert found.more_count >= 17
    assert found.more_nbytes >= sum(array.nbytes for array in sorted(arrays, key=lambda a: -a.nbytes)[3:])


def test_names_that_no_parser_accepts_are_made_printable() -> None:
    """A terminal must not act on a name that code of the user's has set."""
    (name,) = [array.names[0] for array in describe_memory({"\x1b[31m": jnp.ones(37)}).arrays if array.shape == (37,)]
    assert name == "�[31m"


def test_array_that_is_computed_is_not_awaited() -> None:
    """Its buffers are not asked for their addresses, because that may wait; a failed computation has none."""
    x = jnp.ones(3)

    class Part:
        sharding, size, dtype = x.sharding, x.size, x.dtype

        def __init__(self, *, is_ready: bool) -> None:
            self.is_ready = lambda: is_ready

        def unsafe_buffer_pointer(self) -> int:
            assert self.is_ready()
            raise RuntimeError("the computation has failed")

    class Computed:
        _arrays = (Part(is_ready=False), Part(is_ready=True))

    (device,) = x.sharding.device_set
    assert list_buffers(Computed()) == [(device, None, 12), (device, None, 12)]
    assert list_buffers(x) == [(device, x.unsafe_buffer_pointer(), 12)]


def test_line_that_assigned_a_name_is_found(cell_7: int) -> None:
    """The latest cell that assigns the name, or an item of it, and the line there."""
    namespace = {"x": jnp.ones(2), "params": {"w": jnp.ones(3)}, "z": jnp.ones(4)}
    found = named(describe_memory(namespace, seq=cell_7 + 1))
    assert {name: array.place for name, array in found.items()} == {
        "x": "cell 7, line 1",
        "params['w']": "cell 7, line 3",
        "z": "",
    }
    assert found["x"].is_assignment


# -- failed allocations


def grow(nbytes: int) -> Any:
    """Fail with an array in a local variable."""
    held = jnp.ones((41, 8))
    return held, jnp.zeros(nbytes, jnp.uint8)


def fail() -> BaseException:
    """Return the error of a failed allocation."""
    try:
        grow(TOO_LARGE)
    except Exception as error:  # noqa: BLE001 - it is what the tests are about
        return error
    raise AssertionError("the allocation succeeded")


def describe(error: BaseException, **namespace: Any) -> Any:
    """Describe what memory held at an error."""
    cause = find_failed_allocation(error)
    assert cause is not None
    return describe_failure(cause, namespace, {}, seq=0)


def test_arrays_of_the_failed_function_are_listed() -> None:
    """The error's frames still hold their arrays, which have no name."""
    failure = describe(fail(), x=jnp.ones(43))
    assert (failure.requested, failure.is_host, failure.problem) == (TOO_LARGE, False, "")
    assert [array.names for array in failure.memory.arrays if array.shape == (41, 8)] == [()]
    assert "x" in named(failure.memory)


def test_failed_allocation_that_led_to_an_error_is_found() -> None:
    """It may be the cause of the error, or one of a group; an error that was raised in its place on purpose is not."""
    failure = fail()
    caused, hidden = ValueError("no batch"), ValueError("no batch")
    caused.__cause__ = failure
    hidden.__context__, hidden.__suppress_context__ = failure, True
    assert find_failed_allocation(failure) is failure
    assert find_failed_allocation(caused) is failure
    assert find_failed_allocation(ExceptionGroup("two", [KeyError(1), caused])) is failure
    assert find_failed_allocation(hidden) is None
    assert find_failed_allocation(RuntimeError("RESOURCE_EXHAUSTED: Out of memory")) is None


def test_limit_of_a_kernel_is_no_failed_allocation() -> None:
    """The small memories of a kernel are filled by its own blocks, and no array of the user's is to blame."""
    kind = type(fail())
    for text in ("Shared memory size limit exceeded: requested 262144", "Ran out of memory in memory space vmem"):
        assert find_failed_allocation(kind(f"RESOURCE_EXHAUSTED: {text}")) is None
    assert find_failed_allocation(kind("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm")) is not None


def test_items_have_the_line_of_their_own_assignment() -> None:
    """The last assignment to the item, or to what it is in; another item's does not count."""
    source = "p = {}\np['w'] = 1\np['b'] = 2\nfor i in y:\n    q[i] = 3\nr.w = 4"
    linecache.cache["<cell 9001>"] = (len(source), None, source.splitlines(keepends=True), "<cell 9001>")
    places = memory._AssignedPlaces(9001)
    lines = {name: places.find([name]) for name in ("p['w']", "p['b']", "p['c']", "p", "q[0]", "r.w", "z")}
    assert lines == {
        "p['w']": (9001, 2),
        "p['b']": (9001, 3),
        "p['c']": (9001, 1),
        "p": (9001, 1),
        "q[0]": (9001, 5),
        "r.w": (9001, 6),
        "z": None,
    }


def test_memory_of_the_host_may_be_short() -> None:
    """NumPy says how much it asked for; Python says nothing."""
    with pytest.raises(MemoryError) as raised:
        np.zeros(1 << 50, np.uint8)
    failure = describe(raised.value)
    assert (failure.requested, failure.is_host) == (1 << 50, True)
    assert describe(MemoryError()).requested is None


def test_report_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory is too short for the report, the card says so."""

    def fail_again(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(memory, "_visit_namespace", fail_again)
    failure = describe(MemoryError("no room"))
    assert failure.problem == "the arrays in memory could not be listed: MemoryError"


def test_devices_whose_statistics_fail_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a platform raises becomes a sentence, and the shards are summed."""

    class Device:
        device_kind, platform = "odd", "odd"

        def memory_stats(self) -> Any:
            raise NotImplementedError("no statistics")

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    jnp.ones(2)
    found = describe_memory({})
    assert found.devices[0].is_sum
    assert found.problems == ("the memory statistics of odd could not be read: NotImplementedError: no statistics",)


def test_statistics_and_the_whole_card_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU reports what JAX uses; nvidia-ml-py adds the whole card, by the number or the UUID that JAX may see."""

    class Device:
        device_kind, platform, local_hardware_id = "H100", "gpu", 1

        def memory_stats(self) -> Any:
            return {"bytes_in_use": 5, "peak_bytes_in_use": 6, "bytes_limit": 80}

    class Nvml:
        used, total = 7, 81

        def nvmlInit(self) -> None:  # noqa: N802 - the library's name
            return None

        def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
            return uuid

        def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
            assert handle == "GPU-b"
            return self

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    monkeypatch.setattr(memory, "_NVML", "fake_nvml")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    jnp.ones(2)
    (device,) = describe_memory({}).devices
    assert (device.used, device.peak, device.limit, device.card_used) == (5, 6, 80, None)
    monkeypatch.setitem(sys.modules, "fake_nvml", Nvml())
    (device,) = describe_memory({}).devices
    assert (device.card_used, device.card_total, device.is_sum) == (7, 81, False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-c")
    found = describe_memory({})
    assert found.devices[0].card_total is None
    (problem,) = found.problems
    assert problem.startswith("the memory of the whole card could not be read: AssertionError")

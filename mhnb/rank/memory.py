"""Describe this rank's memory: devices, process, and live arrays by name.

Only metadata is read: no array's content, no user's `repr`. Nothing is launched, and nothing waits for an array that is still computed.
Two arrays that share their buffers, such as an array and its `.addressable_shards`, count once.

The module is imported only when somebody asks, or an allocation has failed.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import itertools
import linecache
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import psutil
from msgspec.structs import replace

from mhnb.adapters.variables import find_holder, type_name, user_names
from mhnb.core.guard.provenance import HOST_DATA, SHARDED_HOST_DATA
from mhnb.core.memory import (
    MAX_ALIASES,
    MAX_FAILURE_ARRAYS,
    MAX_REPORTED,
    SHARES_MEMORY,
    AllocationFailure,
    ArrayMemory,
    DeviceMemory,
    RankMemory,
    parse_requested_nbytes,
)
from mhnb.core.messages import shorten_text
from mhnb.rank.execution.cell_names import CELL_NAMES, cell_file
from mhnb.rank.execution.exceptions import is_a, name_of, text_of
from mhnb.rank.guard.programs import forbid_launches
from mhnb.rank.guard.provenance import read_tags
from mhnb.rank.jax_private import backend_is_initialized, list_arrays, list_buffers, unwrap_array
from mhnb.sharding.spec import format_spec, parse_spec

_NO_LAUNCH = "%mhjax memory runs nothing; the class of a value computes something when JAX flattens it"
MIN_HOST_NBYTES = 1 << 20
"""NumPy arrays that are smaller are left out."""
_MAX_NAME_CHARS = 200
_MAX_NODES, _MAX_NAME_NODES = 100_000, 10_000
"""Most values that are visited in search of arrays: in all, and by one name, so that one large list does not use up the search."""
_MAX_DEPTH = 16
_MAX_VISITS = 3
"""How often a container is entered that several names lead to. Without a limit, shared containers within shared ones take forever."""
_MAX_KEY_LENGTH = 8
_NVML = "pynvml"
"""The module of nvidia-ml-py, which need not be installed."""
_MAX_CELLS = 200
"""Most cells, the latest ones, that are searched for the assignment of a name."""
_MAX_CELL_CHARS, _MAX_CELLS_CHARS = 64 * 1024, 512 * 1024
"""Characters of one cell, and of all cells, that are parsed for that."""
_PLAIN_TYPES = (str, bytes, bytearray, int, float, complex, bool, type(None), range, slice)
_OUT, _LAST_VALUES = "_oh", ("_", "__", "___")
_IPYTHON_NAME = re.compile(r"_i?\d+|_i{1,3}")
"""Names that IPython gives to earlier inputs and outputs."""


def describe_memory(
    namespace: dict[str, Any], hidden: dict[str, Any] | None = None, *, seq: int = 0, limit: int = MAX_REPORTED
) -> RankMemory:
    """Describe what the memory of this rank holds.

    Args:
        namespace: the user's.
        hidden: names that IPython added to it.
        seq: the number of the latest cell; its text, and that of earlier ones, shows where names were assigned.
        limit: the most arrays to list.
    """
    finder = _ArrayFinder()
    with forbid_launches(_NO_LAUNCH):
        _visit_namespace(finder, namespace, hidden or {})
    return _describe(finder, seq=seq, limit=limit)


def describe_failure(
    cause: BaseException, namespace: dict[str, Any], hidden: dict[str, Any], *, seq: int
) -> AllocationFailure:
    """Describe the memory after a failed allocation, before its frames are freed.

    Args:
        cause: the failed allocation: what the cell raised, or an error that led to it.
        namespace: the user's.
        hidden: names that IPython added to it.
        seq: the number of the cell.
    """
    is_host = is_a(cause, MemoryError)
    requested = parse_requested_nbytes(text_of(cause))
    try:
        finder = _ArrayFinder()
        with forbid_launches(_NO_LAUNCH):
            _visit_namespace(finder, namespace, hidden)
        memory = _describe(finder, seq=seq, limit=MAX_FAILURE_ARRAYS)
        if not is_host and not any(device.is_sum for device in memory.devices):
            # Of no use where the device has a memory of its own.
            memory = replace(memory, arrays=tuple(row for row in memory.arrays if row.scope != "host"))
    except BaseException as broken:  # noqa: BLE001 - memory may be short for this, too; an interrupt ends only the card
        problem = f"the arrays in memory could not be listed: {_describe_error(broken)}"
        return AllocationFailure(requested, is_host, problem=problem)
    return AllocationFailure(requested, is_host, memory)


def _describe(finder: _ArrayFinder, *, seq: int, limit: int) -> RankMemory:
    """Describe the arrays that were found by a name, and all others."""
    finder.add_unnamed()
    finder.join_parts()
    places = _AssignedPlaces(seq)
    rows = _merge_unnamed([finder.describe(held, places) for held in finder.held if not held.is_part])
    # The names of equal sizes are in order, so that all ranks list the same ones.
    rows.sort(key=lambda row: (-row.nbytes_per_device * row.count, row.names))
    rest = [row for row in rows[limit:] if row.scope != "host"]
    devices = _describe_devices(finder)
    host_nbytes = _read_host_nbytes(finder.problems)
    return RankMemory(
        devices,
        tuple(rows[:limit]),
        sum(row.count for row in rest),
        sum(row.nbytes_per_device * row.count for row in rest),
        host_nbytes,
        tuple(finder.problems),
    )


def _describe_error(error: BaseException) -> str:
    return _format_text(f"{name_of(error)}: {text_of(error)}".removesuffix(": ").partition("\n")[0])


# -- find arrays, and their names


@dataclasses.dataclass(eq=False)
class _Held:
    """An array that is alive, and the names that lead to it."""

    array: Any
    plain: Any
    """The plain array behind an array of keys; else the same."""
    names: list[str] = dataclasses.field(default_factory=list)
    is_part: bool = False
    """Whether all of its buffers are also those of larger arrays in the list."""

    def add_name(self, name: str) -> None:
        """Add a name that leads to it."""
        short = _format_text(name)
        if len(self.names) < MAX_ALIASES and short not in self.names:
            self.names.append(short)


@dataclasses.dataclass(frozen=True)
class _CodeNames:
    """The user's names of what the code of a suggestion needs."""

    named_sharding: str = "jax.NamedSharding"
    partition_spec: str = "jax.P"
    meshes: tuple[tuple[str, Any], ...] = ()

    def list_for(self, mesh: Any) -> tuple[str, str, str]:
        """Return the names that make a sharding over a mesh."""
        own = next((name for name, value in self.meshes if value == mesh), "")
        return self.named_sharding, self.partition_spec, own


def _find_code_names(namespace: dict[str, Any]) -> _CodeNames:
    own = sorted((name for name in list(namespace) if type(name) is str and name[:1] != "_"), reverse=True)
    found = {id(namespace[name]): name for name in own}
    meshes = [(name, namespace[name]) for name in reversed(own) if type(namespace[name]) is jax.sharding.Mesh]
    return _CodeNames(
        found.get(id(jax.sharding.NamedSharding), _CodeNames.named_sharding),
        found.get(id(jax.sharding.PartitionSpec), _CodeNames.partition_spec),
        tuple(meshes),
    )


class _ArrayFinder:
    def __init__(self) -> None:
        self.held: list[_Held] = []
        self.problems: list[str] = []
        self.code_names = _CodeNames()
        self.device_nbytes: dict[Any, int] = {}
        """By device: the sum of the buffers, each once."""
        self._by_id: dict[int, _Held] = {}
        self._on_path: set[int] = set()
        self._visits: dict[int, int] = {}
        """How often each container was entered."""
        self._nodes = self._name_end = 0

    def begin_name(self) -> None:
        """Begin with the values that another name of the user leads to."""
        self._name_end = min(_MAX_NODES, self._nodes + _MAX_NAME_NODES)

    def visit(self, value: Any, name: str, depth: int = 0) -> None:
        """Record the arrays that a value holds. Containers and pytrees are entered."""
        kind = type(value)
        self._nodes += 1
        if issubclass(kind, _PLAIN_TYPES) or depth > _MAX_DEPTH:
            return
        if issubclass(kind, np.ndarray):
            self._add_host_array(value, name)
        elif issubclass(kind, jax.Array):
            if not issubclass(kind, jax.core.Tracer):
                self.add(value, name)
        elif id(value) not in self._on_path and self._visits.get(id(value), 0) < _MAX_VISITS:
            self._visits[id(value)] = self._visits.get(id(value), 0) + 1
            self._on_path.add(id(value))
            try:
                for key, child in _iterate_children(value):
                    if self._nodes >= self._name_end:
                        root = re.split(r"[.\[]", name, maxsplit=1)[0]
                        self.add_problem(
                            f"only the first {_MAX_NAME_NODES:,} values of {_format_text(root)} were searched for arrays, so some of"
                            " its arrays have no name here"
                            if self._nodes < _MAX_NODES
                            else f"only the first {_MAX_NODES:,} values were searched for arrays, so some arrays have no name here"
                        )
                        return
                    self.visit(child, name + key, depth + 1)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's class may do anything when JAX flattens it
                self.add_problem(f"{_format_text(name)} could not be searched for arrays: {_describe_error(error)}")
            finally:
                self._on_path.discard(id(value))

    def add(self, array: Any, name: str = "") -> None:
        """Record an array or another name of it, unless it is deleted."""
        plain = unwrap_array(array)
        known = self._by_id.get(id(plain))
        if known is None:
            if plain.is_deleted():
                return
            known = self._by_id[id(plain)] = _Held(array, plain)
            self.held.append(known)
        if name:
            # An array of keys is what the user knows, not the numbers behind it.
            known.array = array
            known.add_name(name)

    def add_problem(self, problem: str) -> None:
        """Add a sentence about what could not be read."""
        if problem not in self.problems:
            self.problems.append(problem)

    def join_parts(self) -> None:
        """Count each buffer once; arrays within larger ones become names of them."""
        owners: dict[tuple[Any, int], _Held] = {}
        for held in sorted(self.held, key=lambda each: -_local_nbytes(each.plain)):
            if issubclass(type(held.plain), np.ndarray):
                continue
            owner: _Held | None = None
            has_own = False
            for device, address, nbytes in list_buffers(held.plain):
                if address is not None and (known := owners.setdefault((device, address), held)) is not held:
                    owner = known
                    continue
                has_own = True
                self.device_nbytes[device] = self.device_nbytes.get(device, 0) + nbytes
            if owner is not None and not has_own:
                held.is_part = True
                for name in held.names:
                    owner.add_name(name + SHARES_MEMORY)

    def _add_host_array(self, array: Any, name: str) -> None:
        """Record a NumPy array, as its base: several views are one array."""
        # NumPy's own attributes, and not those of a class of the user's.
        base = array
        while issubclass(type(owner := _BASE_OF(base)), np.ndarray):
            base = owner
        if _NBYTES_OF(base) < MIN_HOST_NBYTES or owner is not None:
            # Without memory of its own: the buffer of a JAX array, or of a file.
            return
        known = self._by_id.get(id(base))
        if known is None:
            plain = np.ndarray.view(base, np.ndarray)
            known = self._by_id[id(base)] = _Held(plain, plain)
            self.held.append(known)
        known.add_name(name)

    def add_unnamed(self) -> None:
        """Record the living arrays that no name leads to."""
        for arrays in list_arrays():
            for array in arrays:
                self.add(array)

    def describe(self, held: _Held, places: _AssignedPlaces) -> ArrayMemory:
        """Describe an array."""
        names = tuple(sorted(held.names, key=_name_order))
        if issubclass(type(held.plain), np.ndarray):
            row = ArrayMemory(
                names, held.plain.shape, held.plain.dtype.name, "host", held.plain.nbytes, held.plain.nbytes, 0
            )
        else:
            row = _describe_array(held.array, held.plain, names)
            if names and row.spec is not None:
                row = replace(row, code_names=self.code_names.list_for(held.array.sharding.mesh))
        if row.place or not names:
            return row
        found = places.find(names)
        return row if found is None else replace(row, place=_format_place(*found), is_assignment=True)


def _name_order(name: str) -> tuple[bool, bool, int, int, str]:
    """Return a sort key: variables, then outputs and parts; short paths first."""
    is_hidden = name.startswith(("Out[", "_"))
    depth = name.count("[") + name.count(".")
    return name.endswith(SHARES_MEMORY), is_hidden, depth, len(name), name


_BASE_OF, _NBYTES_OF = np.ndarray.base.__get__, np.ndarray.nbytes.__get__


def _visit_namespace(finder: _ArrayFinder, namespace: dict[str, Any], hidden: Mapping[str, Any]) -> None:
    names = list(user_names(namespace, dict(hidden)))
    own = {
        name
        for name in list(namespace)
        if type(name) is str and name[:1] == "_" and name not in hidden and not name.startswith("__")
    }
    names += [name for name in sorted(own - {_OUT, *_LAST_VALUES}) if not _IPYTHON_NAME.fullmatch(name)]
    values = [(name, namespace.get(name)) for name in names]
    finder.code_names = _find_code_names(namespace)
    # The values of earlier cells, which IPython keeps.
    outputs = namespace.get(_OUT)
    if type(outputs) is dict:
        values += [(f"Out[{number}]", value) for number, value in list(outputs.items())]
    values += [(name, namespace.get(name)) for name in _LAST_VALUES]
    # Arrays before what may take the search long.
    values.sort(key=lambda item: not issubclass(type(item[1]), jax.Array | np.ndarray))
    for name, value in values:
        finder.begin_name()
        finder.visit(value, name)


def _iterate_children(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield children of a container or pytree, with their name suffixes."""
    kind = type(value)
    if issubclass(kind, dict):
        for key, child in list(dict.items(value)):
            yield f"[{_format_key(key)}]", child
    elif issubclass(kind, tuple) and isinstance(fields := kind.__dict__.get("_fields"), tuple):
        for name, child in zip(fields, tuple.__iter__(value), strict=False):
            yield f".{name}", child
    elif issubclass(kind, list | tuple):
        items: Iterable[Any] = list.__iter__(value) if issubclass(kind, list) else tuple.__iter__(value)
        for at, child in enumerate(items):
            yield f"[{at}]", child
    elif not jax.tree_util.all_leaves([value]):
        children, _ = jax.tree_util.default_registry.flatten_one_level(value)
        if len(list(itertools.islice(children, _MAX_NAME_NODES + 1))) > _MAX_NAME_NODES:
            raise ValueError(f"it has more than {_MAX_NAME_NODES:,} children")
        # One level: JAX asks of the value itself first. It may be its own child.
        asked = itertools.count()
        found, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda _: next(asked) > 0)
        for path, child in found:
            yield jax.tree_util.keystr(path), child


def _format_key(key: Any) -> str:
    """Format a key of a dict, without code of the user's."""
    if type(key) in (str, int, bool, float, bytes) or key is None:
        return repr(key)
    if type(key) is tuple and len(key) <= _MAX_KEY_LENGTH:
        return f"({', '.join(map(_format_key, key))}{',' if len(key) == 1 else ''})"
    return f"<{type_name(key)}>"


def _merge_unnamed(rows: Sequence[ArrayMemory]) -> list[ArrayMemory]:
    """Merge the arrays without a name that have equal facts."""
    counts: dict[ArrayMemory, int] = {}
    named = []
    for row in rows:
        if row.names:
            named.append(row)
        else:
            counts[row] = counts.get(row, 0) + 1
    return [*named, *(replace(row, count=count) for row, count in counts.items())]


# -- describe one array


def _describe_array(array: Any, plain: Any, names: tuple[str, ...]) -> ArrayMemory:
    sharding = plain.sharding
    outer = array.sharding
    spec: str | None = None
    mesh: tuple[tuple[str, int], ...] = ()
    if isinstance(outer, jax.sharding.NamedSharding):
        spec, mesh = _format_spec(outer.spec), tuple((str(axis), size) for axis, size in outer.mesh.shape.items())
    shard = sharding.shard_shape(plain.shape)
    itemsize = plain.dtype.itemsize
    tag = read_tags([plain])[0]
    producer = tag[1]
    return ArrayMemory(
        names,
        tuple(array.shape),
        str(array.dtype),
        "local" if plain.is_fully_addressable else "global",
        _multiply(plain.shape) * itemsize,
        _multiply(shard) * itemsize,
        len(sharding.device_set),
        spec,
        mesh,
        _find_memory_kind(sharding),
        "" if producer is None else _name_program(producer.name),
        "" if producer is None else _format_place(producer.seq, producer.line),
        holder=find_holder(sharding),
    )


def _local_nbytes(plain: Any) -> int:
    """Return an array's bytes on this process's devices, from its metadata."""
    if issubclass(type(plain), np.ndarray):
        return int(plain.nbytes)
    count = len(plain.sharding.addressable_devices)
    return count * _multiply(plain.sharding.shard_shape(plain.shape)) * int(plain.dtype.itemsize)


def _name_program(name: str) -> str:
    """Return a program's name without types; other names stay as they are."""
    return _format_text(name if name in (HOST_DATA, SHARDED_HOST_DATA) else name.partition(" ")[0])


def _format_text(text: str) -> str:
    """Shorten text from the user's code, and replace unprintable characters."""
    short = shorten_text(text, _MAX_NAME_CHARS)
    return short if short.isprintable() else "".join(sign if sign.isprintable() else "�" for sign in short)


def _multiply(sizes: Iterable[int]) -> int:
    number = 1
    for size in sizes:
        number *= size
    return number


def _format_spec(spec: Any) -> str:
    try:
        return format_spec(parse_spec(spec))
    except ValueError:
        return shorten_text(str(spec), _MAX_NAME_CHARS)


def _find_memory_kind(sharding: Any) -> str:
    """Return an array's memory kind; empty for the device's own or CPU."""
    kind = sharding.memory_kind
    device = next(iter(sharding.device_set))
    return "" if kind in (None, "device") or device.platform == "cpu" else str(kind)


# -- the line that made an array, or assigned its name


def _format_place(seq: int, line: int | None) -> str:
    return f"{CELL_NAMES.format_name(seq)}{'' if line is None else f', line {line}'}"


class _AssignedPlaces:
    """Where the notebook's names were last assigned, from the cells' text.

    It is for arrays of which the guard has no record: those of one rank alone, and those of cells that ran without it.
    """

    def __init__(self, seq: int) -> None:
        self._unread = iter(range(seq, max(0, seq - _MAX_CELLS), -1))
        self._read: list[tuple[int, dict[str, int]]] = []
        """Of each cell that was read, the latest first, the lines of its assignments."""
        self._remaining_chars = _MAX_CELLS_CHARS

    def find(self, names: Sequence[str]) -> tuple[int, int | None] | None:
        """Return cell and line of the names' last assignment, or None."""
        for name in names:
            if name.startswith("Out["):
                continue
            targets = _list_targets(name)
            for seq, lines in self._iterate_cells():
                if found := [lines[target] for target in targets if target in lines]:
                    return seq, max(found)
        return None

    def _iterate_cells(self) -> Iterator[tuple[int, dict[str, int]]]:
        yield from self._read
        for seq in self._unread:
            source = "".join(linecache.getlines(cell_file(seq)))
            self._remaining_chars -= len(source)
            if self._remaining_chars < 0:
                return
            self._read.append((seq, _find_assignments(source)))
            yield self._read[-1]


def _list_targets(name: str) -> list[str]:
    """Return the targets of assignments that give a name its array.

    >>> _list_targets("params['w'].value")
    ["params['w'].value", "params['w']", 'params', "params['w'][*]", 'params[*]']
    """
    ends = [found.start() for found in re.finditer(r"[.\[]", name)]
    inner = [name[:end] for end in reversed(ends)]
    return [name, *inner, *(f"{each}[*]" for each in inner)]


def _find_assignments(source: str) -> dict[str, int]:
    r"""Return the last assigning line of each target in a cell.

    A target is as in the text, such as `x`, `x['w']` or `x.w`; `x[*]` is for an item whose key the text does not have.

    >>> sorted(_find_assignments("x = 1\nfor i in y:\n    x[i], z['w'] = 2, 3").items())
    [('i', 2), ('x', 1), ('x[*]', 3), ("z['w']", 3)]
    """
    if not source or len(source) > _MAX_CELL_CHARS:
        return {}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, int] = {}
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Name | ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            target = ast.unparse(node)
            if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
                target = f"{ast.unparse(node.value)}[*]"
            found[target] = max(found.get(target, 0), node.lineno)
        pending.extend(ast.iter_child_nodes(node))
    return found


# -- devices, and the process


def _describe_devices(finder: _ArrayFinder) -> tuple[DeviceMemory, ...]:
    if not backend_is_initialized():
        finder.problems.append("JAX has not started its devices yet")
        return ()
    return tuple(_describe_device(at, device, finder) for at, device in enumerate(jax.local_devices()))


def _describe_device(ordinal: int, device: Any, finder: _ArrayFinder) -> DeviceMemory:
    statistics = None
    try:
        statistics = device.memory_stats()
    except Exception as error:  # noqa: BLE001 - what a platform without statistics raises differs: it becomes a note
        finder.add_problem(f"the memory statistics of {device.device_kind} could not be read: {_describe_error(error)}")
    if not statistics or "bytes_in_use" not in statistics:
        return DeviceMemory(ordinal, device.device_kind, finder.device_nbytes.get(device, 0), is_sum=True)
    card_used, card_total = _read_card(device, finder) if device.platform == "gpu" else (None, None)
    return DeviceMemory(
        ordinal,
        device.device_kind,
        statistics["bytes_in_use"],
        statistics.get("peak_bytes_in_use"),
        statistics.get("bytes_limit"),
        card_used=card_used,
        card_total=card_total,
    )


def _read_card(device: Any, finder: _ArrayFinder) -> tuple[int | None, int | None]:
    """Return used and total bytes of a GPU, if nvidia-ml-py reports them."""
    try:
        pynvml: Any = importlib.import_module(_NVML)
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        handle = _find_card(pynvml, device.local_hardware_id)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.used), int(memory.total)
    except Exception as error:  # noqa: BLE001 - the driver's library may be missing, or not see the card: it becomes a note
        finder.add_problem(f"the memory of the whole card could not be read: {_describe_error(error)}")
        return None, None


def _find_card(nvml: Any, hardware_id: int) -> Any:
    """Return the handle of a GPU, numbered among the visible ones."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    name = visible[hardware_id] if hardware_id < len(visible) else str(hardware_id)
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


def _read_host_nbytes(problems: list[str]) -> int | None:
    try:
        return int(psutil.Process().memory_info().rss)
    except (psutil.Error, OSError) as error:
        problems.append(f"the memory of the process could not be read: {_describe_error(error)}")
        return None

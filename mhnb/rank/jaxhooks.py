"""Where mhnb touches private names of JAX: so that each launch of a multi-process program is recorded.

It decides which compiled programs are recorded, and what makes two of them the same program.
It refuses to guess: every private name is probed first, and where one does not fit, JAX is left as it was.

How: JAX builds a compiled program's call object once, and its C++ fast paths take nothing but an `ExecuteReplicated`.
For a multi-process program we build a `_Recorded` around that object instead: `jit`, ahead-of-time `compiled(x)`,
`pmap`, eager operations and `device_put` all go through it, and single-process programs stay as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mhnb.core.guard.reach import may_communicate
from mhnb.core.guard.rules import FREE_PREFIX, communicates
from mhnb.errors import OrderMismatch
from mhnb.rank.guard.launched import Launched
from mhnb.rank.guard.launches import LaunchRecorder
from mhnb.rank.guard.programs import (
    CompiledProgram,
    check_may_launch,
    find_meshes,
    full_name,
    identify_module,
    optimised_texts,
    ranks_of_devices,
)
from mhnb.rank.guard.provenance import NOT_GUARDED, OutputProvenance, tag_outputs
from mhnb.rank.jaxseams import missing_makers
from mhnb.sharding.hlo_bare import bare_text
from mhnb.sharding.passed import find_donated, find_passed

__all__ = [
    "HookStatus",
    "current_recorder",
    "find_plain",
    "identify",
    "install",
]

_Places = list[tuple[int, int]]

_current = threading.local()
"""By thread. `.module`, `.arguments`: what is being compiled, and what goes with it; `.launched`: the launch being made."""


@dataclass(frozen=True, slots=True)
class HookStatus:
    """Whether launches are recorded; if not, why."""

    available: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Program:
    """A compiled multi-process program."""

    fingerprint: str
    name: str
    participants: tuple[int, ...]
    compiled: CompiledProgram | None = None
    passed: tuple[tuple[int, int], ...] = ()
    """Outputs that are arguments as they came."""
    donated: tuple[int, ...] | None = ()
    """Arguments that a launch takes for good; None where that is not known."""


_recorder: LaunchRecorder | None = None


def install(recorder: LaunchRecorder) -> HookStatus:
    """Have every launch of a multi-process program recorded in `recorder`.

    To be called before user code: a program compiled ahead of time before that is not seen.
    Initialises no backend. Called again, it exchanges the recorder.
    """
    global _recorder  # noqa: PLW0603 - JAX is hooked once in a process, and so is what its hooks report to
    if _recorder is None:
        try:
            reason = _probe()
        except Exception as error:  # noqa: BLE001 - private code may raise anything: that is the reason we give
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            return HookStatus(False, reason)
        _hook()
    _recorder = recorder
    recorder.finish_effects = _finish_effects
    return HookStatus(True)


def current_recorder() -> LaunchRecorder | None:
    """What launches are recorded in; None where the hooks do not fit."""
    return _recorder


def identify(compiled: Any) -> tuple[str, list[Any]]:
    """Name and device assignment of what `lower(...).compile()` gave."""
    unloaded = compiled._executable._unloaded_executable
    return unloaded.name, list(unloaded.device_list)


def _finish_effects() -> None:
    """Wait for prints and callbacks from inside compiled programs; free when there are none."""
    import jax
    from jax._src import dispatch

    try:
        jax.effects_barrier()
    except Exception:
        # since jax 0.10.2: a failed effect is raised again at the end of every later cell; 0.12 forgets it by itself.
        dispatch.runtime_tokens.clear()
        raise


def _probe() -> str | None:
    """Say why the hooks do not fit the installed JAX; None when they do."""
    import jax
    from jax._src import array, dispatch, pjit
    from jax._src.interpreters import pxla

    missing = _missing_names(pxla)
    if not array.ArrayImpl.__dictoffset__:
        # An array carries where it comes from.
        missing.append("ArrayImpl.__dict__")
    missing += missing_makers()
    if not callable(getattr(dispatch.runtime_tokens, "clear", None)):
        missing.append("runtime_tokens.clear")
    if missing:
        return f"jax {jax.__version__} has no {', '.join(missing)}"
    executable: Any = pxla.MeshExecutable.__new__(pxla.MeshExecutable)
    executable._unsafe_call = _Recorded(None)
    # Asked with arguments that they would choke on, did they not turn away at the sight of our call object.
    if pjit._get_fastpath_data(executable, None, [], [], (), (), None, ()) is not None:
        return f"jax {jax.__version__} would launch from C++ in spite of the hook"
    if executable.create_cpp_call(None) is not None:
        return f"jax {jax.__version__} would launch compiled programs from C++ in spite of the hook"
    return None


def _missing_names(pxla: Any) -> list[str]:
    unloaded = pxla.UnloadedMeshExecutable
    fields = {
        "UnloadedMeshExecutable": {field.name for field in dataclasses.fields(unloaded)},
        "MeshExecutable": set(pxla.MeshExecutable.__slots__),
        "ExecuteReplicated": set(pxla.ExecuteReplicated.__slots__),
    }
    missing = [
        f"{name}.{field}" for name, wanted in _FIELDS.items() for field in wanted.split() if field not in fields[name]
    ]
    parameters = list(inspect.signature(unloaded.from_hlo).parameters)
    if parameters[:2] != ["name", "hlo"] or not {"host_callbacks", "keepalive"} <= set(parameters):
        missing.append("UnloadedMeshExecutable.from_hlo(name, hlo, host_callbacks, keepalive)")
    if list(inspect.signature(unloaded.load).parameters) != ["self"]:
        missing.append("UnloadedMeshExecutable.load()")
    # Of the method: the source of a class costs the parse of its whole file, 0.03 s of every rank's start.
    source = inspect.getsource(pxla.ExecuteReplicated.__call__)
    calls = ("self.xla_executable.execute_sharded(", "results.consume_with_handlers(")
    missing += [f"ExecuteReplicated with {call}...)" for call in calls if call not in source]
    if not isinstance(pxla.MeshExecutable.unsafe_call, property):
        missing.append("MeshExecutable.unsafe_call")
    return missing


_FIELDS = {
    "UnloadedMeshExecutable": "device_list input_avals input_shardings name output_avals output_shardings "
    "xla_executable",
    "MeshExecutable": "_unsafe_call build_unsafe_call",
    "ExecuteReplicated": "mut ordered_effects xla_executable",
}
"""What we read and set, by private class."""


def _hook() -> None:
    import jax
    from jax._src import traceback_util
    from jax._src.interpreters import pxla

    unloaded: Any = pxla.UnloadedMeshExecutable
    unloaded.from_hlo = staticmethod(_note_module(unloaded.from_hlo))
    unloaded.load = _load_recorded(unloaded.load)
    # What was compiled so far was not hooked; nothing is lost, it compiles again when it is next called.
    jax.clear_caches()
    # JAX then filters our frames from tracebacks as it does its own.
    exclude = getattr(traceback_util, "register_exclusion", None)
    if exclude is not None:
        exclude(__file__)


def _note_module(from_hlo: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the compilation of a lowered module, to have it at hand when its executable is loaded."""

    @functools.wraps(from_hlo)
    def compile_noted(name: str, hlo: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        _current.module, _current.arguments = hlo, kwargs
        try:
            return from_hlo(name, hlo, *args, **kwargs)
        finally:
            _current.module, _current.arguments = None, {}

    return compile_noted


def _load_recorded(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap the loading of an executable, to put `_Recorded` around the call of a multi-process one."""

    @functools.wraps(load)
    def load_recorded(unloaded: Any) -> Any:
        __tracebackhide__ = True
        executable = load(unloaded)
        participants = tuple(sorted({device.process_index for device in unloaded.device_list}))
        if len(participants) > 1:
            program = _describe(unloaded, participants)
            executable.build_unsafe_call = functools.partial(_build_recorded, executable.build_unsafe_call, program)
        return executable

    return load_recorded


def _describe(unloaded: Any, participants: tuple[int, ...]) -> _Program:
    module, devices = _module_text(unloaded), list(unloaded.device_list)
    ranks, meshes = ranks_of_devices(devices), find_meshes(module)
    compiled = CompiledProgram(unloaded.name, ranks, devices[0].platform, meshes, unloaded.xla_executable)
    fingerprint = _fingerprint(unloaded, module)
    if _recorder is not None:
        _recorder.describe(fingerprint, "\n".join([_device_text(unloaded), module, _option_text()]))
    passed, donated = find_passed(module), find_donated(module)
    return _Program(fingerprint, full_name(unloaded), participants, compiled, passed, donated)


def _build_recorded(build: Callable[[], Any], program: _Program) -> _Recorded:
    call = build()
    # Which output goes into a mutable array, and which is an argument; tokens come before all others.
    first = len(call.ordered_effects)
    places = enumerate(call.mut.out_mut if call.mut else ())
    written = [(output, first + place) for output, place in places if place is not None]
    passed = [(output - first, place) for output, place in program.passed if output >= first]
    call.xla_executable = _NotingExecutable(call.xla_executable, program, written, passed)
    return _Recorded(call)


class _Recorded:
    """Stands for the `ExecuteReplicated` of a multi-process program: not being one, it keeps JAX off its C++ paths."""

    __slots__ = ("_call",)

    def __init__(self, call: Any) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __call__(self, *args: Any) -> Any:
        __tracebackhide__ = True
        gate = None if _recorder is None else _recorder.gate
        # A signal handler or a finalizer may call a program in the middle of another launch, which is not to be settled by that.
        nested = gate is not None and gate.is_inside()
        around, _current.launched = getattr(_current, "launched", None), None
        try:
            return self._call(*args)
        except BaseException as error:
            launched: Launched | None = _current.launched
            if launched is not None:
                launched.break_dispatch(error)
            raise
        finally:
            # Or the arrays that it made would live until the next launch.
            _current.launched = around if nested else None
            if gate is not None and not nested:
                gate.settle()


class _NotingExecutable:
    """Agrees on a launch and notes it at the very moment it is made: after the arguments were laid out, which may launch others."""

    __slots__ = ("_executable", "_passed", "_program", "_written")

    def __init__(self, executable: Any, program: _Program, written: _Places, passed: _Places) -> None:
        self._executable, self._program = executable, program
        self._written, self._passed = written, passed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)

    def execute_sharded(self, inputs: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        recorder, program = _recorder, self._program
        assert recorder is not None
        check_may_launch(program.name)
        _check_given_once(program, inputs)
        lines, gate = _find_lines(recorder, program), recorder.gate
        line = lines[0] if lines else None
        nested = gate is not None and gate.is_inside()
        try:
            recorder.left.check(program.fingerprint, program.name, program.participants)
            recorder.learn_contents(program.fingerprint, inputs, program.donated)
            birth = NOT_GUARDED
            if gate is not None:
                birth = gate.enter(program.fingerprint, program.name, program.participants, lines, inputs)
            return self._launch(inputs, kwargs, line, birth)
        except OrderMismatch as error:
            if threading.current_thread() is threading.main_thread():
                recorder.mismatches.note_raised(error, program.name, line)
            elif gate is not None:
                # What the gate itself refused it has noted while the cell still waited for this thread; the first one counts.
                gate.note_failure(error)
            raise
        finally:
            if gate is not None and not nested:
                gate.leave()

    def _launch(self, inputs: Any, kwargs: Any, line: int | None, birth: OutputProvenance) -> _NotingResults:
        __tracebackhide__ = True
        recorder, program = _recorder, self._program
        assert recorder is not None
        who, compiled = program.participants, program.compiled
        recorder.note_given(program.fingerprint, who, line, inputs, birth=birth)
        launched = recorder.note(program.fingerprint, program.name, who, line, outputs=None, program=compiled)
        launched.agreed = birth.agreed
        recorder.follow_given(launched, inputs)
        _current.launched = launched
        try:
            results = self._executable.execute_sharded(inputs, **kwargs)
            written, passed = ({at: inputs[n] for at, n in places} for places in (self._written, self._passed))
            return _NotingResults(
                results, launched, functools.partial(tag_outputs, provenance=birth, written=written, passed=passed)
            )
        except Exception:
            # The runtime refused it (a deleted argument, say) before anything ran: it was no launch.
            recorder.withdraw(launched)
            _current.launched = None
            raise


def _check_given_once(program: _Program, inputs: Sequence[Any]) -> None:
    """Hold that no array is donated and given a second time: JAX refuses that too late, and ends the process by SIGSEGV.

    Raises:
        ValueError: one is.
    """
    if not program.donated:
        return
    first = {id(inputs[place]): place for place in reversed(program.donated) if place < len(inputs)}
    for place, given in enumerate(inputs):
        donated = first.get(id(given), place)
        if donated != place:
            one, other = sorted((donated + 1, place + 1))
            raise ValueError(
                f"{program.name} was not launched: the array that is its argument {donated + 1} is donated, and given again in the "
                f"same call\n  It is argument {one} and argument {other}, counted over all leaves. A donated array can be given once.\n"
                "  Give a copy of it (y.copy()) as the other argument, or do not donate it."
            )


def _find_lines(recorder: LaunchRecorder, program: _Program) -> tuple[int, ...]:
    """The lines of the cell that lead to a launch; none in a thread where nobody waits in it: it may be ahead on one rank."""
    in_step = communicates(program.fingerprint) or threading.current_thread() is threading.main_thread()
    return recorder.find_lines() if in_step else ()


class _NotingResults:
    """Hands the arrays of a launch to its record when JAX makes them; also those that end up in a mutable array."""

    __slots__ = ("_launched", "_mark", "_results")

    def __init__(self, results: Any, launched: Launched, mark: Callable[[Sequence[Any]], None]) -> None:
        self._results, self._launched, self._mark = results, launched, mark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    def consume_with_handlers(self, handlers: Sequence[Any], **kwargs: Any) -> Any:
        __tracebackhide__ = True
        outputs = self._results.consume_with_handlers(handlers, **kwargs)
        # A program with ordered effects consumes its tokens first, by an incomplete list of handlers.
        if kwargs.get("strict", True):
            plain = [find_plain(output) for output in outputs]
            self._launched.end_dispatch(plain)
            self._mark(plain)
        return outputs


def find_plain(output: Any) -> Any:
    """Give the plain array behind an array of keys or of another extended type: those do not say whether they are ready."""
    while not hasattr(output, "is_ready"):
        output = output._base_array if hasattr(output, "_base_array") else output._data
    return output


def _fingerprint(unloaded: Any, module: str) -> str:
    """Hash what makes it this program: the lowered module without locations, the devices, the options.

    The module holds shardings, donations, and what its host callbacks are. Neither XLA's optimised text nor
    `executable.fingerprint` would do where there is a module: the one may differ per host, the other changes with the line of the call.
    """
    parts = (module, _device_text(unloaded), _option_text())
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()
    return digest if _may_communicate(unloaded.xla_executable) else FREE_PREFIX + digest


def _device_text(unloaded: Any) -> str:
    return f"devices {','.join(str(device.id) for device in unloaded.device_list)}"


def _option_text() -> str:
    options = getattr(_current, "arguments", {}).get("compiler_options_kvs", ())
    return f"compiler options {sorted(map(str, options))}"


def _module_text(unloaded: Any) -> str:
    module = getattr(_current, "module", None)
    if module is not None:
        text = str(module.operation.get_asm(enable_debug_info=False, assume_verified=True))
        given = getattr(_current, "arguments", {})
        return identify_module(text, given.get("host_callbacks") or (), given.get("keepalive") or ())
    # An executable that was serialised comes without its module. Its name and types say too little: a sum and a maximum
    # have the same. So what XLA made of it must do, though that may differ between machines that are not alike.
    facts = (unloaded.name, unloaded.input_avals, unloaded.input_shardings, unloaded.output_avals)
    made = map(bare_text, optimised_texts(unloaded.xla_executable, whole=True) or ())
    return "\0".join([repr((*facts, unloaded.output_shardings)), *made])


def _may_communicate(xla_executable: Any) -> bool:
    # Only XLA knows: its partitioner puts most collectives in after lowering. Whether there are any does not depend
    # on the host, as the rest of this text may.
    texts = optimised_texts(xla_executable)
    return texts is None or any(map(may_communicate, texts))

"""`check` grades an answer in the process that calls it.

Each rank grades its own data without communication. A check that waited for other ranks would hang if one rank did not call it.
The notebook combines the feedback of the ranks and shows equal feedback once.

An assertion compares the data of this process with the expected data, and reports device, index and both values. A budget
compares a program's collectives with those that it may run. It works on plain values, and the measuring function is an argument, so a
budget can be checked without a compiler.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from mhnb.core.output.answers import Answer
from mhnb.core.ranks import pluralize
from mhnb.errors import InvalidRequest, NotYet
from mhnb.sharding.boxes import box_of_index, format_box
from mhnb.sharding.report import Collective
from mhnb.teach.exercise import Exercise, ProcessInfo, WrongAnswer, find_task, lesson_of
from mhnb.teach.progress import AnswerRecord, read_lesson_state, title_of, try_write_record
from mhnb.view.document import Document
from mhnb.view.live.screen import hide_traceback, show_document
from mhnb.view.reports.lesson import (
    Difference,
    DifferenceRow,
    build_answer,
    build_bar,
    build_not_yet,
    build_right,
    format_difference,
    format_raised,
    format_right,
)


def name_kind(value: Any) -> str:
    """Name the type of a value with its article.

    >>> name_kind(4), name_kind([]), name_kind(np.zeros(2))
    ('an int', 'a list', 'a NumPy array')
    """
    # The notebook's process also checks answers, and should not import JAX for a name.
    name = type(value).__name__
    name = {"ArrayImpl": "jax.Array", "ndarray": "NumPy array"}.get(name, name)
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def call_answer(answer: Any, *arguments: Any, what: str) -> Any:
    """Call the learner's function. Its exceptions are not caught."""
    if not callable(answer):
        raise WrongAnswer(
            f"the answer is {name_kind(answer)}",
            expected=f"a function {what}",
            note="Pass the function itself, not its result",
        )
    return answer(*arguments)


def assert_equal(got: Any, expected: Any, what: str, *, note: str = "") -> None:
    """Check that type and value are equal, also inside a tuple."""
    if not _is_equal(got, expected):
        raise WrongAnswer(
            f"{what} is {got!r}{_format_type_difference(got, expected)}", expected=f"{expected!r}", note=note
        )


def _is_equal(got: Any, expected: Any) -> bool:
    # An integer of NumPy is as good as one of Python, because NumPy's functions return it.
    got = int(got) if isinstance(got, np.integer) else got
    if isinstance(expected, tuple | list):
        return type(got) is type(expected) and len(got) == len(expected) and all(map(_is_equal, got, expected))
    is_same_kind = isinstance(got, type(expected)) and isinstance(got, bool) == isinstance(expected, bool)
    return is_same_kind and bool(got == expected)


def _format_type_difference(got: Any, expected: Any) -> str:
    same = type(got) is type(expected) or got is None or expected is None
    return "" if same else f" ({type(got).__name__}, not {type(expected).__name__})"


def assert_global_array(x: Any, shape: tuple[int, ...], dtype: str, what: str, process: ProcessInfo) -> Any:
    """Return x after a check of its type, shape, dtype and devices."""
    import jax

    if not isinstance(x, jax.Array):
        raise WrongAnswer(f"{what} is {name_kind(x)}", expected="a jax.Array")
    if len(x.sharding.device_set) != process.device_count:
        n = len(x.sharding.device_set)
        raise WrongAnswer(
            f"{what} is on {n} device{'s' * (n > 1)}",
            expected=f"all {process.device_count}: a global array has shards on each",
        )
    if (tuple(x.shape), str(x.dtype)) != (shape, dtype):
        note = "The shape is right, and the dtype is not" if tuple(x.shape) == shape else ""
        raise WrongAnswer(f"{what} is {x.dtype}{list(x.shape)}", expected=f"{dtype}{list(shape)}", note=note)
    return x


def assert_spec(x: Any, mesh: Any, spec: Any, what: str) -> None:
    """Check that the array's sharding is equivalent to `spec` over `mesh`."""
    import jax

    expected = jax.sharding.NamedSharding(mesh, spec)
    if not x.sharding.is_equivalent_to(expected, x.ndim):
        got = getattr(x.sharding, "spec", None)
        held, wanted = tuple(x.addressable_shards[0].data.shape), expected.shard_shape(x.shape)
        if held == wanted and (moved := _find_moved_shard(x, expected)):
            raise WrongAnswer(f"{what} is sharded by {got}: {moved[0]}", expected=moved[1])
        raise WrongAnswer(
            f"{what} is sharded by {got}, with shards of shape {held}", expected=f"shards of shape {wanted}"
        )


def _find_moved_shard(x: Any, expected: Any) -> tuple[str, str] | None:
    """Describe the first misplaced shard of this process: actual, and expected."""
    indices = expected.devices_indices_map(x.shape)
    for ordinal, shard in enumerate(_local_shards(x)):
        got, wanted = (box_of_index(index, x.shape) for index in (shard.index, indices[shard.device]))
        if got != wanted:
            return f"device {shard.device.process_index}:{ordinal} holds {format_box(got)}", format_box(wanted)
    return None


def assert_shards(x: Any, expected: np.ndarray, what: str, process: ProcessInfo, *, note: str = "") -> None:
    """Check that this process's shards hold the expected values.

    A wrong value's feedback has the note.
    """
    for ordinal, shard in enumerate(_local_shards(x)):
        expected_shard = expected[shard.index]
        got = np.asarray(shard.data)
        if got.shape != expected_shard.shape:
            raise WrongAnswer(
                f"{what} on device {process.rank}:{ordinal} has shape {got.shape}", expected=f"{expected_shard.shape}"
            )
        if not np.allclose(got, expected_shard, rtol=1e-5, atol=1e-6):
            at = tuple(int(each) for each in np.argwhere(~np.isclose(got, expected_shard, rtol=1e-5, atol=1e-6))[0])
            index = tuple((box.start or 0) + i for box, i in zip(shard.index, at, strict=True))
            raise WrongAnswer(
                f"{what} on device {process.rank}:{ordinal} holds {got[at]} at {_format_index(index)}",
                expected=f"{expected_shard[at]}",
                note=note,
            )


def assert_fits(x: Any, nbytes: int, what: str, process: ProcessInfo) -> None:
    """Check that no local device holds more than `nbytes` of the array."""
    for ordinal, shard in enumerate(_local_shards(x)):
        if shard.data.nbytes > nbytes:
            copies = list(x.sharding.devices_indices_map(x.shape).values()).count(shard.index)
            shared = f", and {copies} devices hold the same one" if copies > 1 else ""
            raise WrongAnswer(
                f"{what} takes {shard.data.nbytes} bytes on device {process.rank}:{ordinal}",
                expected=f"at most {nbytes}",
                note=f"Its shard is {tuple(shard.data.shape)} of {tuple(x.shape)}{shared}",
            )


def make_mesh(sizes: tuple[int, ...], names: tuple[str, ...]) -> Any:
    """Build a mesh in device order; `jax.make_mesh` refuses several GPU nodes."""
    import jax

    devices, types = np.array(jax.devices()).reshape(sizes), (jax.sharding.AxisType.Explicit,) * len(names)
    return jax.sharding.Mesh(devices, names, axis_types=types)


def assert_each_device_once(mesh: Any, process: ProcessInfo) -> None:
    """Check that a mesh has each device once; JAX does not."""
    n = len(set(mesh.devices.flat))
    if n != process.device_count:
        raise WrongAnswer(f"the mesh has {pluralize(n, 'device')}", expected=f"each of the {process.device_count} once")


def _local_shards(x: Any) -> list[Any]:
    """Return the shards of this process, ordered by local device index."""
    return sorted(x.addressable_shards, key=lambda shard: shard.device.id)


def _format_index(index: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, index)) + "]"


# -- `check`


_MAX_ANSWER_CHARS = 4000
_MAX_SHOWN_CHARS = 200
"""Characters of a value that is shown below a right answer; a longer one proves nothing at a glance."""
_NOTEBOOK = ProcessInfo(None, 1, 1, 1)


def check(name: str, *answer: Any) -> None:
    """Grade an answer; in a `%%mhjax` cell, on all its ranks.

    Args:
        name: name of the exercise.
        *answer: the answer: a function, an array or a value.

    Raises:
        NotYet: the answer is not correct in this process. The text says what differs; the notebook shows on which rank.
        InvalidRequest: the exercise does not exist, or must be checked on the other side (notebook or ranks).
    """
    exercise = cast(Exercise, find_task(name, Exercise))
    name = exercise.name
    process = current_process()
    _check_side(exercise, process)
    try:
        feedback = _grade(exercise, process, answer)
    except WrongAnswer as differs:
        _store(name, process, answer, feedback=str(differs), is_correct=False)
        difference = Difference(title_of(exercise), differs.yours, differs.expected, differs.note, exercise.hints[0])
        raise _show_not_yet(exercise, process, difference) from None
    _store(name, process, answer, feedback=feedback, is_correct=True)
    _show_right(exercise, process, feedback, list(_format_shown(exercise, answer)))


def _show_not_yet(exercise: Exercise, process: ProcessInfo, difference: Difference) -> NotYet:
    """Return a wrong answer's error, and show it in the notebook process."""
    # Without the rank number, because the notebook names the ranks and shows text that is equal on all ranks once.
    error = NotYet(format_difference(difference), exercise=exercise.name, rank=process.rank)
    if process.rank is None and hide_traceback(error):
        _show_with_bar(exercise, build_not_yet([DifferenceRow("", difference)]))
    return error


def _show_right(exercise: Exercise, process: ProcessInfo, feedback: str, shown: Sequence[str]) -> None:
    title = title_of(exercise)
    if process.rank is None:
        _show_with_bar(exercise, build_right(title, feedback, shown))
    else:
        _publish(Answer(title, is_right=True), format_right(title, feedback, shown))


def _show_with_bar(exercise: Exercise, card: Document) -> None:
    show_document([*card, *build_bar(read_lesson_state(lesson_of(exercise), after=exercise))])


def _publish(answer: Answer, text: str) -> None:
    """Show a rank's answer as a display, apart from printed text."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        print(text)
    else:
        shell.display_pub.publish(answer.bundle(text))


def _format_shown(exercise: Exercise, answers: Sequence[Any]) -> Iterator[str]:
    """Yield a drawing or the short value of each right answer."""
    names = list(inspect.signature(exercise.grade).parameters)[1:]
    for name, answer in zip(names, answers, strict=True):
        drawing = _draw_jax_value(name, answer)
        if drawing:
            yield drawing
        elif not callable(answer) and len(text := repr(answer)) <= _MAX_SHOWN_CHARS:
            yield f"{name} = {text}"


def _draw_jax_value(name: str, value: Any) -> str:
    """Draw the devices of a multi-device array or a mesh; otherwise empty."""
    if "jax" not in sys.modules:
        return ""
    import jax

    from mhnb.adapters.jax_arrays import read_layout, read_mesh
    from mhnb.view.layout_grid import format_layout_text
    from mhnb.view.reports.mesh import format_mesh_text

    if isinstance(value, jax.sharding.Mesh):
        return format_mesh_text(read_mesh(value))
    is_drawable = isinstance(value, jax.Array) and value.ndim > 0 and len(value.sharding.device_set) > 1
    return f"{name}  {format_layout_text(read_layout(value))}" if is_drawable else ""


def _check_side(exercise: Exercise, process: ProcessInfo) -> None:
    if exercise.side == "ranks" and process.rank is None:
        raise InvalidRequest(
            f"{exercise.name} is checked on the ranks, but this cell ran in the notebook\n"
            "  Fix: add %%mhjax as the first line of this cell"
        )
    if exercise.side == "notebook" and process.rank is not None:
        raise InvalidRequest(
            f"{exercise.name} is checked in the notebook, but this cell ran on the ranks\n"
            "  Fix: remove %%mhjax from this cell"
        )


def _grade(exercise: Exercise, process: ProcessInfo, answer: tuple[Any, ...]) -> str:
    if any(each is ... for each in answer):
        raise WrongAnswer("the cell still contains ...; replace it first", note=exercise.prompt)
    try:
        inspect.signature(exercise.grade).bind(process, *answer)
    except TypeError:
        parameters = list(inspect.signature(exercise.grade).parameters)[1:]
        raise InvalidRequest(
            f"{exercise.name} takes {pluralize(len(parameters), 'answer')} ({', '.join(parameters)}); got {len(answer)}"
        ) from None
    try:
        return exercise.grade(process, *answer)
    except WrongAnswer:
        raise
    except Exception as error:
        # Raised by the learner's code, or by the guard about it: show it unchanged, and record the answer as incorrect.
        feedback = f"{type(error).__name__}: {error}".splitlines()[0]
        _store(exercise.name, process, answer, feedback=feedback, is_correct=False)
        _show_raised(exercise, process, type(error).__name__)
        raise


def _show_raised(exercise: Exercise, process: ProcessInfo, error_name: str) -> None:
    """Show that the learner's code raised; the error is shown separately."""
    answer = Answer(title_of(exercise), is_right=False)
    text = format_raised(answer.title, error_name)
    if process.rank is None:
        _show_with_bar(exercise, build_answer(answer, text))
    else:
        _publish(answer, text)


def current_process() -> ProcessInfo:
    """Describe this process; on a rank, the values come from JAX."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return _NOTEBOOK
    return ProcessInfo(jax.process_index(), jax.process_count(), jax.device_count(), jax.local_device_count())


def _store(name: str, process: ProcessInfo, answer: tuple[Any, ...], *, feedback: str, is_correct: bool) -> None:
    text = "\n".join(format_answer(each) for each in answer)
    if failed := try_write_record(name, AnswerRecord(process.rank, process.process_count, is_correct, feedback, text)):
        print(failed, file=sys.stderr)


def format_answer(answer: Any) -> str:
    """Return a callable's source or a value's repr, up to `_MAX_ANSWER_CHARS`."""
    try:
        text = inspect.getsource(answer) if callable(answer) else repr(answer)
    except (OSError, TypeError):
        text = repr(answer)
    return text[:_MAX_ANSWER_CHARS]


# -- communication budget


Measure = Callable[..., Sequence[Collective]]
"""Takes a function and its arguments; returns the collectives of the compiled program."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on the collectives of a program in one launch."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Maximum number per op. An op that is not listed is not allowed."""
    nbytes_per_device: int | None = None
    """Bytes that a device contributes, summed over all collectives; None for no limit."""
    nbytes_across_hosts: int | None = None
    """The part of these bytes that goes to another host; None for no limit."""


def measure(function: Any, *arguments: Any) -> Sequence[Collective]:
    """Compile a function and return its collectives; all ranks must call it."""
    from mhnb.rank.requests.sharding import collectives

    return collectives(function, *arguments)


def check_budget(budget: Budget, function: Any, *arguments: Any, measure: Measure = measure) -> str:
    """Check a program's collectives against a budget, and describe them.

    Raises:
        WrongAnswer: the program exceeds the budget; the text names the collective, the count and the bytes.
    """
    usage = measure(function, *arguments)
    usage_text = f"It runs {format_usage(usage)}"
    for op in sorted({each.op for each in usage}):
        count = sum(each.times for each in usage if each.op == op)
        allowed = budget.counts.get(op, 0)
        if count > allowed:
            limit = "none" if allowed == 0 else f"at most {allowed}"
            raise WrongAnswer(f"the program has {count} {op}", expected=limit, note=usage_text)
    on_device = sum(each.times * each.nbytes_per_device for each in usage)
    across = sum(each.times * each.nbytes_across_hosts for each in usage)
    for nbytes, limit_nbytes, what in (
        (on_device, budget.nbytes_per_device, ""),
        (across, budget.nbytes_across_hosts, " for other hosts"),
    ):
        if limit_nbytes is not None and nbytes > limit_nbytes:
            raise WrongAnswer(
                f"each device contributes {nbytes} bytes{what}", expected=f"at most {limit_nbytes}", note=usage_text
            )
    return format_usage(usage)


def format_usage(usage: Sequence[Collective]) -> str:
    """Describe the collectives of a program in one line."""
    rows = [f"{each.times} {each.op} of {each.nbytes_per_device} bytes" for each in usage]
    return ", ".join(rows) or "no collective"

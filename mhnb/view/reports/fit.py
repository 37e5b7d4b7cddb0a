"""What a call would need on a machine: memory, collectives and time."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.core.ranks import pluralize
from mhnb.core.variables import format_array
from mhnb.sharding.fit import Candidate, Fit, PlannedArgument, Search, StepTime
from mhnb.sharding.hlo_cost import Cost
from mhnb.sharding.layout import format_nbytes
from mhnb.sharding.machines import Machine
from mhnb.sharding.mesh import format_axes, format_mesh_code
from mhnb.view.document import (
    Code,
    Document,
    Drawing,
    Fields,
    Fold,
    InHtml,
    InText,
    Line,
    Part,
    Progress,
    Section,
    Table,
    without_empty_columns,
)
from mhnb.view.drawings.search import SearchPoint, format_points
from mhnb.view.html import format_seconds
from mhnb.view.reports.collectives import build_collectives

_DOMAINS = {"tpu": "slice", "cuda": "host", "cpu": "host"}
"""What the machine's network connects."""
_SHOWN_ARGUMENTS = 8
_ARGUMENT_HEADER = ("argument", "type", "spec", "bytes/device")
_GPU_NOTE = (
    "Without the machine, XLA cannot try kernels out. On it, they may need more memory, and read and write less."
)
_SOURCES = (
    "Memory and collectives are the compiler's own. Operations of products, and the bytes they read and write, are counted from its"
    " program. Times are estimates: each part at the chip's peak, without latency."
)


def build_fit(fit: Fit) -> Document:
    """Build the report of a call on a machine."""
    return [
        Line(f"fit · {fit.name} · {fit.machine.text} · mesh ({format_axes(fit.mesh)})", "heading"),
        Line(fit.machine.format_summary(), "quiet"),
        *_build_missing_compiler(fit),
        _build_memory(fit),
        Fields(_list_memory(fit) + ([] if fit.step is None else _list_step(fit.step, fit.cost)), look="words"),
        *_build_arguments(fit.arguments),
        InText([Line("")]),
        Section(build_collectives([fit.collectives], domain=_DOMAINS[fit.machine.chip.platform])),
        *_build_notes(fit),
    ]


def _build_missing_compiler(fit: Fit) -> list[Part]:
    if not fit.missing_compiler:
        return []
    label = fit.machine.chip.label
    return [
        Line(
            f"The compiler of {label} is not installed. This is what the CPU's partitioner says: arguments are exact,",
            "advice",
        ),
        Line(
            "collectives may differ, and temporaries of a CPU are not those of the machine. To install the compiler:",
            "advice",
        ),
        Code(fit.missing_compiler, indent=2),
    ]


def _build_memory(fit: Fit) -> Part:
    needed, available = fit.memory.nbytes, fit.available
    if available is None or fit.missing_compiler:
        return Line(f"{format_nbytes(needed)} on each device")
    verdict = f"does not fit: {format_nbytes(fit.missing)} too much" if fit.missing else "fits"
    return Progress(
        f"{format_nbytes(needed)} of {format_nbytes(available)} on each device: {verdict}",
        min(needed, available),
        available,
    )


def _list_memory(fit: Fit) -> list[tuple[str, str]]:
    memory = fit.memory
    kept = f", {format_nbytes(memory.aliased)} of it in the place of donated arguments" if memory.aliased else ""
    rows = [
        ("arguments", format_nbytes(memory.arguments)),
        ("temporaries", format_nbytes(memory.temporaries)),
        ("outputs", format_nbytes(memory.outputs) + kept),
    ]
    if fit.machine.chip.reserved and not fit.missing_compiler:
        rows.append(
            ("reserved", f"{format_nbytes(fit.machine.chip.reserved)} for the chip's own software, an estimate")
        )
    return rows


def _list_step(step: StepTime, cost: Cost) -> list[tuple[str, str]]:
    share = f"at best {step.peak_share:.0%} of the chip's peak"
    return [
        ("step", f"{_format_range(step)}, with all or no communication hidden; bound by {step.bound_by}; {share}"),
        ("compute", f"{format_time(step.compute)} for {cost.flops:.2e} operations"),
        ("memory", f"{format_time(step.memory)} for {format_nbytes(cost.nbytes)}"),
        ("communication", format_time(step.communication)),
    ]


def _format_range(step: StepTime) -> str:
    least, most = format_time(step.at_least), format_time(step.at_most)
    return f"about {least}" if least == most else f"{least} to {most}"


def format_time(seconds: float) -> str:
    """Format an estimated duration with two digits.

    >>> format_time(4.2e-6), format_time(0.00059), format_time(0.0123), format_time(3.14)
    ('4.2 µs', '590 µs', '12 ms', '3.1 s')
    """
    if seconds < 0.0995:
        scaled, unit = (seconds * 1e6, "µs") if seconds < 0.995e-3 else (seconds * 1e3, "ms")
        return f"{scaled:.0f} {unit}" if scaled >= 9.5 else f"{scaled:.1f} {unit}"
    return format_seconds(seconds)


def _build_arguments(arguments: Sequence[PlannedArgument]) -> list[Part]:
    largest = sorted(arguments, key=lambda each: -each.nbytes)
    rows = [
        (each.name, format_array(each.shape, each.dtype), each.spec, format_nbytes(each.nbytes)) for each in largest
    ]
    shown, rest = rows[:_SHOWN_ARGUMENTS], rows[_SHOWN_ARGUMENTS:]
    parts: list[Part] = [Table(_ARGUMENT_HEADER, shown, frozenset((3,)))] if shown else []
    if rest:
        nbytes = format_nbytes(sum(each.nbytes for each in largest[_SHOWN_ARGUMENTS:]))
        words = f"{pluralize(len(rest), 'smaller argument')}, {nbytes}"
        parts.append(InText([Line(words)]))
        parts.append(InHtml([Fold(words, [Table(_ARGUMENT_HEADER, rest, frozenset((3,)))])]))
    return parts


def _build_notes(fit: Fit) -> list[Part]:
    notes = [] if fit.missing_compiler else [_SOURCES]
    if fit.machine.chip.platform == "cuda" and not fit.missing_compiler:
        notes.append(_GPU_NOTE)
    if fit.cost.has_unknown_loop:
        notes.append("A loop whose length XLA does not state is counted once.")
    if fit.cost.uncounted:
        notes.append(f"Not counted, as only their kernels know: operations of {', '.join(fit.cost.uncounted)}.")
    if fit.machine.chip.source:
        notes.append(f"Figures of the chip: {fit.machine.chip.source}.")
    return [Line(note, "quiet") for note in notes]


# -- a search

_SEARCH_HEADER = ("mesh", "specs", "memory/device", "step", "bound by", "of peak", "")
_OPTIONAL = frozenset(("specs", "step", "bound by", "of peak", ""))


def build_search(call: str, search: Search, machine: Machine) -> Document:
    """Build the table of a search's meshes, the best one first."""
    rows = [_search_cells(each, machine) for each in search.candidates]
    done, left_out = len(search.candidates), sum(not each.is_compiled for each in search.candidates)
    words = [f"{pluralize(done, 'mesh')} in {format_seconds(search.seconds)}"]
    if left_out:
        words.append(f"{left_out} not compiled, because the arguments alone do not fit")
    if done < search.count:
        words.append(f"interrupted: {search.count - done} of {search.count} were not tried")
    parts: list[Part] = [
        Line(f"fit · {call} · {machine.text}", "heading"),
        Line(machine.format_summary(), "quiet"),
        Line(" · ".join(words), "quiet"),
        without_empty_columns(_SEARCH_HEADER, rows, _OPTIONAL),
        *_build_points(search),
    ]
    if search.best is None:
        return [*parts, Line("no mesh fits", "bad")]
    best = search.best.fit
    assert best is not None
    code = format_mesh_code(best.mesh, best.axis_types, machine.split(dict(best.mesh)))
    specs = f" with {search.best.specs}" if search.best.specs else ""
    return [*parts, Line(f"the best{specs}", "caption"), Code(code), Line(_SOURCES, "quiet")]


def _build_points(search: Search) -> list[Part]:
    points = [
        SearchPoint(each.fit.memory.nbytes, each.fit.step.at_least, format_axes(each.mesh))
        for each in search.candidates
        if each.fit is not None and each.fit.step is not None and each.fits
    ]
    if len(points) < 2:
        return []
    memory = [format_nbytes(round(end([each.memory for each in points]))) for end in (min, max)]
    times = [format_time(end([each.seconds for each in points])) for end in (min, max)]
    return [Drawing(format_points(points, (f"{memory[0]} a device", memory[1]), (times[0], f"step {times[1]}")))]


def _search_cells(candidate: Candidate, machine: Machine) -> tuple[str, ...]:
    mesh, available = format_axes(candidate.mesh), machine.chip.available
    fit = candidate.fit
    if fit is None:
        needed = candidate.needed
        note = candidate.refusal or f"{format_nbytes((needed or 0) - (available or 0))} too much"
        return (mesh, candidate.specs, "" if needed is None else f"≥ {format_nbytes(needed)}", "", "", "", note)
    step = fit.step
    times = () if step is None else (_format_range(step), step.bound_by, f"{step.peak_share:.0%}")
    note = f"{format_nbytes(fit.missing)} too much" if fit.missing else ""
    return (mesh, candidate.specs, format_nbytes(fit.memory.nbytes), *(times or ("", "", "")), note)

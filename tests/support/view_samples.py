"""Sample results, a screen that records, and a parser of HTML as a strict page would show it."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from mhnb.core.hang_report import HangReport, RankLocation
from mhnb.core.output.answers import Answer
from mhnb.core.output.results import RANK_STOPPED, CarriedNote, CellResult, RankResult
from mhnb.types import Outcome, Output, RankError
from mhnb.view.cell.html import format_cell_html
from mhnb.view.document import Document
from mhnb.view.live.frame import LiveFrame, frame_to_html
from mhnb.view.live.screen import LiveWidget, Region
from mhnb.view.print_html import print_html
from mhnb.view.reports.lesson import (
    Difference,
    LessonState,
    TaskLine,
    build_bar,
    build_prediction,
    build_progress,
    build_right,
    format_difference,
    format_right,
)

FRAME = "\x1b[36mCell\x1b[39m \x1b[32mIn[1], line 3\x1b[39m\n----> 3 x = x.reshape(7, -1)\n"
HELPER = "\x1b[36mFile \x1b[39m\x1b[32m~/project/model.py:8\x1b[39m, in step(x)\n----> 8 return x.reshape(7, -1)\n"
JAX_FRAME = "\x1b[36mFile \x1b[39m\x1b[32m/v/lib/site-packages/jax/_src/core.py:7\x1b[39m, in f(x)\n----> 7 raise\n"
TRACEBACK = (
    "\x1b[31m" + "-" * 75 + "\x1b[39m",
    "\x1b[31mValueError\x1b[39m                                Traceback (most recent call last)",
    FRAME,
    "    \x1b[31m[... skipping hidden 2 frame]\x1b[39m\n",
    JAX_FRAME,
    "\x1b[31mValueError\x1b[39m: cannot reshape",
)


def out(text: str, name: str = "stdout") -> Output:
    """Return output of a stream."""
    return {"output_type": "stream", "name": name, "text": text}


def value(text: str, **data: str) -> Output:
    """Return the value of a last expression."""
    return {"output_type": "execute_result", "data": {"text/plain": text, **data}, "metadata": {}, "execution_count": 1}


def shown(**data: Any) -> Output:
    """Return a display; the slashes of MIME types are written as two underscores."""
    types = {name.replace("__", "/").replace("svg", "svg+xml"): text for name, text in data.items()}
    return {"output_type": "display_data", "data": types, "metadata": {}}


def failed(
    rank: int, ename: str = "ValueError", *, at_s: float = 0.1, said: Sequence[Output] = (), hint: str | None = None
) -> RankResult:
    """Return the result of a rank on which the cell raised."""
    traceback = tuple(text.replace("ValueError", ename) for text in TRACEBACK)
    error = RankError(ename, "cannot reshape", traceback, hint=hint, line=3, code="x = x.reshape(7, -1)", at_s=at_s)
    stored: Output = {"output_type": "error", "ename": ename, "evalue": "", "traceback": list(traceback)}
    return RankResult(rank, "error", (*said, stored), error=error)


def cell(
    *said: Sequence[Output] | RankResult,
    wall_s: float = 0.21,
    done: bool = True,
    outcome: Outcome = "ok",
    notes: tuple[str, ...] = (),
) -> CellResult:
    """Return the result of a cell in which rank k had the k-th output or result."""
    ranks = tuple(
        part if isinstance(part, RankResult) else RankResult(rank, outcome if done else "running", tuple(part))
        for rank, part in enumerate(said)
    )
    return CellResult(12, "x", ranks, wall_s, done=done, notes=notes, process_count=len(ranks))


def after_a_failure(*said: Sequence[Output] | RankResult) -> CellResult:
    """Return the result of a cell after one that finished on rank 0 only."""
    details = "FileExistsError on ranks 1-3 · rank 0 finished; the ranks are still in sync, but variables set in it may differ"
    carried = CarriedNote(11, "finished on rank 0 only: variables may differ", details)
    return replace(cell(*(said or [[value("2")]] * 4)), carried=carried)


def failed_in_a_helper(rank: int) -> RankResult:
    """Return the result of a rank on which a function in a file of the user's raised."""
    result = failed(rank)
    assert result.error is not None
    return replace(result, error=replace(result.error, traceback=(*TRACEBACK[:3], HELPER, *TRACEBACK[3:])))


DEATH = (
    'rank 3 (host3, pid 4714) was killed by SIGKILL (often by the memory limit) · last line: "loading shard 3" · log /l/rank3.log',
    "ranks 0-2 were stopped with it. %mhjax restart --replay (11 cells, about 4 s)",
)


def rank_died() -> CellResult:
    """Return the result of a cell in which rank 3 was killed, and ranks 0-2 were stopped with it."""
    stopped = [
        RankResult(rank, "killed", error=RankError(RANK_STOPPED, "stopped because rank 3 was lost"))
        for rank in range(3)
    ]
    died = RankResult(
        3, "died", error=RankError("RankDied", "rank 3 was killed by SIGKILL (often by the memory limit)")
    )
    return replace(cell(*stopped, died, notes=("\n  ".join(DEATH),)), state="dead")


def with_noise(*said: Sequence[Output]) -> CellResult:
    """Return the result of a cell in which a C++ library has printed a line on each rank."""
    noise = "[Gloo] Rank {} is connected to {} peer ranks.\n"
    result = cell(*said)
    ranks = tuple(replace(rank, noise=noise.format(rank.rank, len(said) - 1)) for rank in result)
    return replace(result, ranks=ranks)


def png(width: int, height: int, shade: int = 0) -> str:
    """Return a PNG of one shade of grey with a frame and a diagonal, as base64 text."""
    rows = bytearray()
    for y in range(height):
        row = bytearray([200 - shade % 100]) * width
        row[0] = row[-1] = row[y * (width - 1) // max(1, height - 1)] = 0
        rows += b"\0" + (bytes(width) if y in (0, height - 1) else row)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(rows))),
        (b"IEND", b""),
    )
    packed = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(packed)).decode()


def figure(shade: int = 0, *, width: int = 540, height: int = 413) -> Output:
    """Return a figure as matplotlib shows it in its default size; figures of one shade are equal."""
    return shown(image__png=png(width, height, shade), text__plain=f"<Figure size {width}x{height} with 1 Axes>")


def frame(rank: int = 0, *, columns: int = 4) -> Output:
    """Return a table as pandas shows it."""
    heads = "".join(f"<th>column {column}</th>" for column in range(columns))
    rows = "".join(
        f"<tr><th>{row}</th>{''.join(f'<td>{rank * 100 + row + column / 7:.4f}</td>' for column in range(columns))}</tr>"
        for row in range(4)
    )
    table = f'<table border="1" class="dataframe"><thead><tr><td></td>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    style = "<style scoped>.dataframe tbody tr th {vertical-align: top}</style>"
    return shown(text__html=f"<div>{style}{table}</div>", text__plain="   column 0 ...")


def drawn_table(loss: float = 0.5, *, columns: int = 2, above: str = "") -> Output:
    """Return a table as rich prints it."""
    cells = [["loss", *[f"step {n}" for n in range(columns)]], ["all", *[f"{loss + n:.2f}" for n in range(columns)]]]
    widths = [max(map(len, column)) + 2 for column in zip(*cells, strict=True)]
    head, row = (
        line.join(word.center(width) for word, width in zip(words, widths, strict=True))
        for words, line in zip(cells, "┃│", strict=True)
    )
    top, middle, bottom = (
        ends[0] + joint.join(across * width for width in widths) + ends[1]
        for across, joint, ends in (("━", "┳", "┏┓"), ("━", "╇", "┡┩"), ("─", "┴", "└┘"))
    )
    return out(f"{above}{top}\n┃{head}┃\n{middle}\n│{row}│\n{bottom}\n")


def with_ranks_at_different_lines(count: int, *, state: str) -> CellResult:
    """Return a running cell in which each rank is at another line: `state` is waiting, absent, or an activity."""
    ranks = tuple(range(count))
    report = HangReport(
        12, ranks if state == "waiting" else (), ranks if state == "absent" else (), launch="jit(step)",
        lines={rank: rank + 1 for rank in ranks}, age_s=6.2, progress=False, known=True, stuck=True,
        places=tuple(RankLocation((rank,), state, "", rank + 1, "loss = step(batch)") for rank in ranks),
    )  # fmt: skip
    return replace(cell(*[[]] * count, done=False, wall_s=6.2), where=report)


def with_states(count: int) -> CellResult:
    """Return a running cell whose ranks are in nine states, and at as many lines as there are ranks that run."""
    activities = ("launch", "sleep", "compiling", "computing", "silent", "io")
    outcomes: tuple[Outcome, ...] = ("ok", "interrupted", "error")
    waiting, absent = tuple(range(0, count, 9)), tuple(range(1, count, 9))
    running = [rank for rank in range(count) if rank % 9 < len(activities)]
    report = HangReport(
        12, waiting, absent, launch="jit(step)", lines={rank: rank + 1 for rank in running}, age_s=6.2, progress=False,
        known=True, stuck=True, memory_nbytes={rank: (300 + 7 * rank) * 2**20 for rank in range(count)},
        places=tuple(
            RankLocation((rank,), activities[rank % 9], "", rank + 1, "loss = step(batch)") for rank in running
        ),
    )  # fmt: skip
    ranks = [
        RankResult(rank, "running") if rank in running else RankResult(rank, outcomes[rank % 9 - 6], wall_s=rank / 7)
        for rank in range(count)
    ]
    return replace(cell(*ranks, done=False, wall_s=6.2), where=report)


# -- lessons


def not_yet(rank: int, yours: str, expected: str, *, title: str = "03.1 columns_apart", hint: str = "") -> RankResult:
    """Return the result of a rank whose answer to an exercise is not right yet."""
    text = format_difference(Difference(title, yours, expected, hint=hint))
    error = RankError(
        "NotYet", text, (f"NotYet: {text}",), line=3, code='mhnb.teach.check("columns_apart", spec)', at_s=0.1
    )
    return RankResult(rank, "error", error=error)


def right(rank: int, feedback: str = "one whole column on each device", *shown: str) -> RankResult:
    """Return the result of a rank whose answer to an exercise is right."""
    text = format_right("03.1 columns_apart", feedback, shown)
    data = Answer("03.1 columns_apart", is_right=True).bundle(text)
    return RankResult(rank, "ok", ({"output_type": "display_data", "data": data, "metadata": {}},))


LESSON_STATE = LessonState(
    "03",
    "Meshes and PartitionSpecs",
    (
        TaskLine("columns_apart", "done", "right on ranks 0-3"),
        TaskLine("pairs_inside", "tried", "not yet on ranks 0-3: mesh is a ndarray, expected a jax.sharding.Mesh"),
        TaskLine("shard_shape", "untried", "not tried"),
    ),
    (
        TaskLine("shard_rows", "done", "you said (2, 6), which is right."),
        TaskLine("shard_both", "missed", "you said (2, 6); it is (2, 3)."),
        TaskLine("row_holders", "tried", "predicted, not revealed"),
    ),
    "03.2 pairs inside a host",
    "#Exercise:-pairs-inside-a-host",
)


def lesson_samples() -> dict[str, str]:
    """Return the views of a lesson as stored HTML, by name."""
    columns = "device {0}:0 would hold rows {0}:{1} and columns 0:8"
    hint = "A dim that is not cut has the entry None."
    apart = [
        not_yet(r, columns.format(r, r + 1), f"rows 0:8 and columns {2 * r}:{2 * r + 1}", hint=hint) for r in range(4)
    ]
    label = [not_yet(r, f"label is 'rank {r} of 8'", f"'rank {r} of 4'", title="01.1 my_label") for r in range(4)]
    some = [right(0), *(not_yet(r, "spec is a tuple", "a PartitionSpec: P(...)") for r in (1, 2, 3))]
    spec = "spec = PartitionSpec(None, ('data', 'model'))"
    question = "How many devices hold row 0?"
    guessed = [("you said", "2"), ("it is", "2")]
    documents: dict[str, Document] = {
        "right in the notebook": [
            *build_right("01.3 pull_each", "4 labels, in the order of the ranks", ["labels = ['rank 0 of 4', ...]"]),
            *build_bar(LESSON_STATE),
        ],
        "question": build_prediction(
            "open", f"predict · {question}", [("choices", "1, 2, 4, 8")], "Run this cell to click one.", text=""
        ),
        "as predicted": build_prediction("right", "✓ as predicted · row_holders", guessed, "Why.", text=""),
        "not as predicted": build_prediction("open", "≠ not as predicted · row_holders", guessed, "Why.", text=""),
        "revealed without a prediction": build_prediction(
            "open", "no prediction was made · row_holders", [], "Answer it first.", text="", fold="it is 2."
        ),
        "progress": build_progress([LESSON_STATE, replace(LESSON_STATE, lesson="04", next_title="")]),
    }
    return {
        "lesson: not yet, by rank": format_cell_html(cell(*apart)),
        "lesson: not yet, equal on all ranks": format_cell_html(cell(*label)),
        "lesson: not yet on some ranks": format_cell_html(cell(*some)),
        "lesson: right": format_cell_html(cell(*(right(r, "one whole column on each device", spec) for r in range(4))))
        + print_html(build_bar(LESSON_STATE)),
        **{f"lesson: {name}": print_html(document) for name, document in documents.items()},
    }


def loop(lines: int = 200) -> CellResult:
    """Return the result of a training loop whose loss and accuracy differ by rank; rank 2 stops learning on the way."""
    said = []
    for rank in range(4):
        text = []
        for step in range(lines):
            learnt = min(step, 0.4 * lines) if rank == 2 else step
            loss = 2.2 * math.exp(-4 * learnt / lines) + 0.12 + 0.003 * ((7 * step + 3 * rank) % 5)
            text.append(f"step {step} loss {loss:.4f} acc {1 - loss / 3 + 0.001 * rank:.3f}\n")
        said.append([out("".join(text))])
    return cell(*said)


def equal_loop(lines: int = 200) -> CellResult:
    """Return the result of a training loop that prints the same on every rank."""
    text = "".join(f"step {step} loss {2.2 * math.exp(-4 * step / lines) + 0.12:.4f}\n" for step in range(lines))
    return cell(*[[out(f"compiling\n{text}done\n")]] * 4)


def loop_with_odd_rank(lines: int = 200) -> CellResult:
    """Return the result of a training loop that prints the same on every rank, until rank 2 leaves the others."""
    said = []
    for rank in range(4):
        text = ["compiling\n"]
        for step in range(lines):
            learnt = min(step, 0.4 * lines) if rank == 2 else step
            more = 0.01 * (step % 5) * (rank == 2 and step > 0.4 * lines)
            text.append(f"step {step} loss {2.2 * math.exp(-4 * learnt / lines) + 0.12 + more:.4f}\n")
        said.append([out("".join([*text, "done\n"]))])
    return cell(*said)


def odd_number() -> CellResult:
    """Return the result of ranks that print numbers which differ everywhere, and a loss that differs on rank 2 only."""
    return cell(
        *[
            [
                out(
                    f"pid {4711 + 7 * rank} device {2048 * rank}\ntook 0.{rank + 3} s\n"
                    f"loss {0.731 if rank == 2 else 0.312} acc 0.{91 + rank}\nport {40000 + 13 * rank}\n"
                )
            ]
            for rank in range(4)
        ]
    )


def different_outputs(lines: int = 64) -> CellResult:
    """Return the result of four ranks with long outputs that have little in common."""
    words = ("alpha", "beta", "gamma", "delta")
    return cell(*[[out("".join(f"{word} line {at} of {word[at % 4]}{at}\n" for at in range(lines)))] for word in words])


def waiting_cell(text: str = "waiting for cell 11 to end (ranks 0-1 running 12 s)") -> CellResult:
    """Return a cell whose turn has not come."""
    return CellResult(0, "", (), wall_s=0.6, done=False, waiting=text)


class StrictPage(HTMLParser):
    """The content of a page without its style, script and input elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        """All text, including closed blocks."""
        self.visible = ""
        """The text that is visible without a click."""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._dropped_depth = 0
        self._open_elements: list[tuple[str, bool]] = []
        self.feed(html)
        self.close()
        self.unclosed = [tag for tag, _ in self._open_elements]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Enter an element."""
        self.tags.append((tag, dict(attrs)))
        if tag in ("style", "script"):
            self._dropped_depth += 1
        if tag not in ("img", "input", "br", "hr"):
            self._open_elements.append((tag, "open" in dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Leave an element."""
        assert self._open_elements, f"</{tag}> closes nothing"
        assert self._open_elements[-1][0] == tag, f"</{tag}> closes <{self._open_elements[-1][0]}>"
        self._open_elements.pop()
        self._dropped_depth -= tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        """Add text."""
        if self._dropped_depth:
            return
        self.text += data
        if not any(self._hides(depth) for depth, (tag, _) in enumerate(self._open_elements) if tag == "details"):
            self.visible += data

    def _hides(self, depth: int) -> bool:
        is_open = self._open_elements[depth][1]
        in_summary = [tag for tag, _ in self._open_elements[depth + 1 : depth + 2]] == ["summary"]
        return not is_open and not in_summary


class RecordingBox:
    """A live widget that records its frames."""

    hides_placeholder = True

    def __init__(self, frame: LiveFrame, act: Callable[[str], None]) -> None:
        self.frames = [frame]
        self.closed = False
        self.retired = False
        self.ends: list[str] = []
        self.press = act

    @property
    def values(self) -> list[str]:
        """The frames as HTML."""
        return [frame_to_html(frame) for frame in self.frames]

    def show(self, frame: LiveFrame, now_s: float) -> None:  # noqa: ARG002 - it has no budget
        """Show another frame."""
        assert not self.closed
        if frame != self.frames[-1]:
            self.frames.append(frame)

    def close(self) -> None:
        """Close the widget."""
        self.closed = True

    def retire(self) -> None:
        """Keep the widget after the cell."""
        assert not self.closed
        self.retired = True

    def show_end(self, html: str) -> None:
        """Show the end of the cell."""
        assert self.retired
        self.ends.append(html)


class RecordingRegion:
    """A terminal region that records its texts."""

    def __init__(self, height: int) -> None:
        self.height = height
        self.texts: list[str] = []
        self.closed = False

    def show(self, text: str) -> None:
        """Record a text."""
        assert not self.closed
        self.texts.append(text)

    def close(self) -> None:
        """Remove the region."""
        self.closed = True


class RecordingScreen:
    """A screen that records its calls: the interface of a notebook's screen, without a front end."""

    color = False

    def __init__(
        self, *, rich: bool = True, widgets: bool = True, broken: bool = False, terminal: bool = False, height: int = 24
    ) -> None:
        self.rich, self.widgets, self.broken = rich and not terminal, widgets, broken
        self.terminal, self.height = terminal, height
        self.regions: list[RecordingRegion] = []
        self.calls: list[tuple[str, Mapping[str, Any], str]] = []
        self.boxes: list[RecordingBox] = []
        self.written: list[str] = []
        self.reported_errors: list[str] = []

    def _record(self, name: str, data: Mapping[str, Any], display_id: str) -> None:
        if self.broken:
            raise RuntimeError("no front end")
        self.calls.append((name, data, display_id))

    def show(self, data: Mapping[str, Any], display_id: str) -> None:
        """Create a display."""
        self._record("show", data, display_id)

    def replace(self, data: Mapping[str, Any], display_id: str) -> None:
        """Replace a display."""
        self._record("replace", data, display_id)

    def show_late(self, data: Mapping[str, Any], display_id: str) -> None:
        """Create a display in an ended cell."""
        self._record("show_late", data, display_id)

    def replace_late(self, data: Mapping[str, Any], display_id: str) -> None:
        """Replace a display of an ended cell."""
        self._record("replace_late", data, display_id)

    def open_live(
        self, frame: LiveFrame, text: str, display_id: str, on_button: Callable[[str], None]
    ) -> LiveWidget | None:
        """Open a widget."""
        if not self.widgets:
            return None
        self._record("open", {"text/plain": text}, display_id)
        self.boxes.append(RecordingBox(frame, on_button))
        return self.boxes[-1]

    def open_region(self) -> Region | None:
        """Open a region if this screen is a terminal."""
        if not self.terminal:
            return None
        self.regions.append(RecordingRegion(self.height))
        return self.regions[-1]

    def wait_for_input(self, limit_s: float) -> None:
        """Record a wait for the front end."""
        self._record("wait", {"text/plain": f"{limit_s} s"}, "")

    def write(self, text: str) -> None:
        """Record printed text."""
        self.written.append(text)

    def report_error(self, text: str) -> None:
        """Record an error report."""
        self.reported_errors.append(text)

    @property
    def call_names(self) -> list[str]:
        """The names of the calls, in order."""
        return [name for name, _, _ in self.calls]


PICTURE_SAMPLES = {
    "figures that differ": cell(*[[figure(rank)] for rank in range(4)]),
    "figures of six ranks after text": cell(*[[out("drawn\n"), figure(rank)] for rank in range(6)]),
    "a figure that differs": cell(*[[figure(int(rank == 2))] for rank in range(4)]),
    "a wide figure": cell(*[[figure(width=1800, height=300)]] * 4),
    "a wide frame": cell(*[[frame(columns=40)]] * 4),
    "frames that differ": cell(*[[frame(rank)] for rank in range(4)]),
    "a wide drawn table": cell(*[[drawn_table(columns=40, above="prose " * 60 + "\n")]] * 4),
    "a drawn table that differs": cell(*[[drawn_table(0.75 if rank == 2 else 0.5)] for rank in range(4)]),
}
"""Results with figures and tables, by what they show."""

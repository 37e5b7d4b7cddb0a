"""The figures: the files are what the code draws, each is used by a lesson, and each image of a lesson exists and is described."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.integration.lessons.book import NOTEBOOKS, read_lesson
from tests.integration.lessons.figures.drawing import Box, Cell, Drawing
from tests.support.source import ROOT

IMAGES = NOTEBOOKS / "img"
COMMAND = "python -m tests.integration.lessons.figures"
_IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<path>[^)\s]+)\)|<img\b[^>]*>")
_DIFF_LINES = 20


def find_changes(drawn: Mapping[str, str], kept: Mapping[str, str]) -> Iterator[str]:
    """Find files that are not what the code draws, with the first lines that differ."""
    for name in sorted(drawn.keys() | kept.keys()):
        if name not in drawn:
            yield f"{name}: no module draws it; delete it"
        elif name not in kept:
            yield f"{name}: is not there"
        elif drawn[name] != kept[name]:
            lines = difflib.unified_diff(kept[name].splitlines(), drawn[name].splitlines(), name, "drawn now", n=1)
            yield "\n".join(line.rstrip() for line in list(lines)[:_DIFF_LINES])


def find_faults(notebooks: Mapping[str, str], files: set[str]) -> Iterator[str]:
    """Find images without a file or a description, and files that no notebook shows.

    Args:
        notebooks: the Markdown of each notebook, by file name.
        files: the paths of the files that there are, such as `img/05_ring.svg`.
    """
    shown = set()
    for name, text in notebooks.items():
        for image in _IMAGE.finditer(text):
            if image["path"] is None:
                yield f"{name}: write {image[0]} as ![what is seen](path)"
                continue
            shown.add(image["path"])
            if image["path"] not in files:
                yield f"{name}: there is no {image['path']}"
            if len(image["alt"].split()) < 5:
                yield f"{name}: describe {image['path']} in a sentence"
    yield from (f"{path}: no notebook shows it" for path in sorted(files - shown))


def read_files(folder: Path) -> dict[str, str]:
    """Return the text of each figure in a folder."""
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.svg")}


@pytest.mark.timeout(180)
def test_files_are_what_the_code_draws(tmp_path: Path) -> None:
    """The files in notebooks/img are exactly what the figures' code draws from the values that JAX computes."""
    command = [sys.executable, "-m", "tests.integration.lessons.figures", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    changes = list(find_changes(read_files(tmp_path), read_files(IMAGES)))
    assert not changes, "\n".join([*changes, f"Fix: look at the change, then run {COMMAND}"])


def test_figures_are_shown_and_described() -> None:
    """Each figure is in a notebook, and each image of a notebook exists and has a description."""
    markdown = {
        path.name: "\n".join(cell.source for cell in read_lesson(path).cells if cell.kind == "markdown")
        for path in NOTEBOOKS.glob("*.ipynb")
    }
    files = {path.relative_to(NOTEBOOKS).as_posix() for path in IMAGES.iterdir() if path.suffix != ".md"}
    assert list(find_faults(markdown, files)) == []


# -- the checks above can fail


@pytest.mark.parametrize(
    ("drawn", "kept", "fault"),
    [
        ({"a.svg": "<svg>\n1"}, {"a.svg": "<svg>\n2"}, "-2\n+1"),
        ({"a.svg": "<svg>"}, {}, "a.svg: is not there"),
        ({}, {"a.svg": "<svg>"}, "a.svg: no module draws it"),
    ],
)
def test_a_changed_file_is_found(drawn: dict[str, str], kept: dict[str, str], fault: str) -> None:
    """A file that differs, that is missing, or that is left over is found."""
    assert fault in "\n".join(find_changes(drawn, kept))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("![four devices, before and after a sum](img/a.svg)", ""),
        ("![four devices, before and after a sum](img/b.svg)", "there is no img/b.svg"),
        ("![](img/a.svg)", "describe img/a.svg"),
        ('<img src="img/a.svg">', "write <img"),
        ("no picture", "img/a.svg: no notebook shows it"),
    ],
)
def test_a_fault_is_found(text: str, fault: str) -> None:
    """An image without a file, one without a description, and a file that is not shown are found."""
    found = "\n".join(find_faults({"05_pictures.ipynb": text}, {"img/a.svg"}))
    assert fault in found if fault else not found


def test_a_drawing_is_always_the_same_text() -> None:
    """A drawing has a title, a description and one element per line, and no number of many digits."""

    def draw() -> str:
        drawing = Drawing(300, 100, title="a sum", description="three cells & an arrow")
        drawing.cells(10, 10, [[Cell("1", (0,)), Cell("2", (0, 1, 2), is_new=True), Cell("")]])
        drawing.device(Box(200, 10, 50, 30), "device 0", number=0)
        drawing.host(Box(10, 60, 100, 30), "host 0", number=0)
        drawing.arrow((10, 50), (100 / 3, 70), bend=20 / 3)
        return drawing.to_svg()

    text = draw()
    assert text == draw()
    assert "<title>a sum</title>" in text
    assert "<desc>three cells &amp; an arrow</desc>" in text
    assert all(line.count("<") <= 2 for line in text.splitlines())
    assert not re.search(r"\.\d\d| id=", text)


def test_a_wide_drawing_is_refused() -> None:
    """A drawing that is wider than the text of a page is an error."""
    with pytest.raises(ValueError, match="expected at most 760"):
        Drawing(761, 100, title="", description="")

"""Every program in `docs/explanation/guard.md` gets the verdict that the page states, on real ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.cell_name import CellPlace
from mhnb.core.output.results import CellResult
from tests.integration.ranks.test_lockstep import interrupt_once_printed
from tests.support.source import ROOT

PAGE = (ROOT / "docs" / "explanation" / "guard.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
VERDICTS = ("launched", "refused", "interrupted", "reported", "noted", "not seen")
UNCOMPARED = re.compile(r"--guard off|made without|not compared")


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the page: its cells, and the verdict on the last one."""

    verdict: str
    cells: tuple[tuple[str, dict[str, Any]], ...] = field(default=())
    """Source and flags of each cell."""


def _read_cell(text: str) -> tuple[str, dict[str, Any]]:
    codes = CODE.findall(text)
    flags = [code for code in codes if code.startswith("--")]
    return "\n".join(code for code in codes if not code.startswith("--")), dict(flag[2:].split() for flag in flags)


def _read_rows(page: str) -> Iterator[Program]:
    for line in page.splitlines():
        columns = line.split(" | ")
        if len(columns) == 3 and columns[0].startswith("| `"):
            cells = columns[0].removeprefix("| ").split("next cell:")
            yield Program(columns[1].strip(), tuple(map(_read_cell, cells)))


def _read_blocks(page: str) -> Iterator[Program]:
    for language, text in BLOCK.findall(page):
        if language == "python" and text.startswith("# verdict: "):
            head, _, code = text.partition("\n")
            yield Program(head.removeprefix("# verdict: "), ((code, {}),))


(SETUP,) = (text for language, text in BLOCK.findall(PAGE) if language == "python" and text.startswith("# setup\n"))
PROGRAMS = [*_read_rows(PAGE), *_read_blocks(PAGE)]


@pytest.fixture
def ready(cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster after the page's first cell; a tainted state is accepted afterwards."""
    cluster.run(SETUP).check()
    yield cluster
    if cluster.state == "tainted":
        cluster.accept()
    assert {rank.text for rank in cluster.run(f"{SETUP}\nfloat(add(x))").check()} == {"28.0"}


def errors(result: CellResult) -> set[str]:
    """Return the names of the errors that the ranks raised."""
    return {rank.error.ename for rank in result if rank.error is not None}


@pytest.mark.sample(8)
@pytest.mark.parametrize("shown", PROGRAMS, ids=lambda program: f"{program.verdict}: {program.cells[-1][0]}"[:80])
def test_a_program_gets_the_verdict_of_the_page(ready: Cluster, shown: Program) -> None:
    """The last cell of a program gets the page's verdict, and the cells before it succeed."""
    *before, (code, flags) = shown.cells
    for earlier, earlier_flags in before:
        assert ready.run(earlier, **earlier_flags).check().state == "clean"
    if shown.verdict == "interrupted":
        result = interrupt_once_printed(ready, f"print('running', flush=True)\n{code}", "running")
        assert ({rank.outcome for rank in result}, result.state) == ({"interrupted"}, "clean")
        return
    result = ready.run(code, **flags)
    assert errors(result) == ({"OrderMismatch"} if shown.verdict == "refused" else set())
    assert result.state == ("tainted" if shown.verdict == "reported" else "clean")
    if shown.verdict in ("launched", "not seen"):
        assert result.notes == ()
    if shown.verdict == "noted":
        assert any(map(UNCOMPARED.search, result.notes)), result.notes


def test_the_page_has_each_verdict() -> None:
    """The page has every verdict, and no row or block is overlooked because it is spelled differently."""
    assert {program.verdict for program in PROGRAMS} == set(VERDICTS)
    assert len(PROGRAMS) == len(re.findall(rf"` \| (?:{'|'.join(VERDICTS)}) \|", PAGE)) + PAGE.count("# verdict: ")


def test_the_first_cell_raises_the_text_below_it(ready: Cluster) -> None:
    """The first cell of the page raises the text that the page shows below it."""
    (cell, shown_text), *_ = re.findall(
        r"^```\n%%mhjax\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
    )
    result = ready.run(cell, place=CellPlace(execution_count=4, first_line=2))
    (error_text,) = {rank.error.evalue for rank in result if rank.error is not None}
    assert error_text.startswith(shown_text.rstrip("\n"))

"""Where the notebook shows the cell that runs, as a magic sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from mhnb.core.cell_name import NO_PLACE, CellPlace
from mhnb.magics import magics
from tests.unit.magics.test_transformers import new_shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """A shell in which `%%mhjax` only binds the place of its cell to `place`."""
    new = new_shell()
    magics.load(new)
    session: Any = new.mhnb_assist._session  # type: ignore[attr-defined]
    monkeypatch.setattr(
        type(session), "run_cell", lambda self, source, _: self.shell.user_ns.update(place=self.find_place(source))
    )
    yield new
    magics.unload(new)


def place_in(shell: InteractiveShell, cell: str, *, store_history: bool = True) -> CellPlace:
    """Run a cell, and return the place that the magic in it found."""
    assert shell.run_cell(cell, store_history=store_history).success
    place: CellPlace = shell.user_ns.pop("place")
    return place


@pytest.mark.parametrize(
    ("cell", "first_line"),
    [
        ("%%mhjax\nx = 1", 2),
        ("%%mhjax\nx = 1\n\n\n", 2),
        ("%%mhjax --ranks 0\n\n# why\nx = 1\n", 3),
        ("\n\n%%mhjax\nx = 1", 4),
        ("  %%mhjax\n  x = 1\n  if x:\n    y = 1", 2),
        ("%%time\n%%mhjax\nx = 1", 3),
        ("%%capture said\n%%mhjax\nx = 1", 3),
        ("%%mhjax\n%%time\nx = 1", 2),
        ("# why\n%%mhjax\nx = 1", 2),
        ("\n# why\n\n%%mhjax --ranks 0\n\nx = 1\n", 3),
        ("# why\n%%mhjax\n%%time\nx = 1", 3),
    ],
)
def test_lines_above_the_source_count(shell: InteractiveShell, cell: str, first_line: int) -> None:
    """Line 1 is the first of the cell as the front end numbers its lines, empty ones included."""
    shell.run_cell("known = 1", store_history=True)
    assert place_in(shell, cell) == CellPlace(2, first_line)
    assert place_in(shell, cell) == CellPlace(3, first_line)


@pytest.mark.parametrize(("cell", "first_line"), [("x = 1", 1), ("\n\nx = 1", 3), ("%%time\nx = 1", 1)])
def test_auto_mode_adds_no_line(shell: InteractiveShell, cell: str, first_line: int) -> None:
    """The `%%mhjax` line that auto mode adds is none of the cell's."""
    session: Any = shell.mhnb_assist._session  # type: ignore[attr-defined]
    session.is_auto_mode = True
    assert place_in(shell, cell) == CellPlace(1, first_line)


def test_cell_that_is_not_stored_has_no_number(shell: InteractiveShell) -> None:
    """The front end shows none, and the next cell has it. A cell inside a cell is the outer one's."""
    shell.run_cell("known = 1", store_history=True)
    assert place_in(shell, "%%mhjax\nx = 1", store_history=False) == NO_PLACE
    assert place_in(shell, "%%mhjax\nx = 1") == CellPlace(2, 2)
    assert place_in(shell, "%%local\nget_ipython().run_cell('''%%mhjax\nx = 1''')") == NO_PLACE


def test_source_that_the_cell_makes_has_no_number(shell: InteractiveShell) -> None:
    """Its lines are not those that the notebook shows."""
    assert place_in(shell, "get_ipython().run_cell_magic('mhjax', '', 'x = 1')") == NO_PLACE
    assert place_in(shell, "%%mhjax\nx = 1") == CellPlace(2, 2)
    magics.unload(shell)
    magics.load(shell)
    assert shell.events.callbacks["pre_run_cell"].count(shell.mhnb_assist._cells._begin) == 1  # type: ignore[attr-defined]

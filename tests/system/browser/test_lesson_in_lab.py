"""A lesson in a real JupyterLab: it runs to its end, a click answers a prediction, and the answer outlives the kernel."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.lab import ROOT, Lab, LabPage, open_chromium
from tests.support.leftovers import no_leftovers

pytestmark = [
    pytest.mark.browser,
    pytest.mark.ranks,
    pytest.mark.requires_part("browser"),
    pytest.mark.timeout(300),
]

LESSON = ROOT / "notebooks" / "01_many_pythons.ipynb"
PREDICT, REVEAL = "predict-where_it_lives", "reveal-where_it_lives"
WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True, slots=True)
class LessonInLab:
    """The lesson after Run All: the live page and the saved file."""

    page: LabPage
    saved: Path

    def index(self, cell_id: str) -> int:
        """Return the position of a cell."""
        return next(i for i, cell in enumerate(json.loads(LESSON.read_text())["cells"]) if cell["id"] == cell_id)

    def output(self, cell_id: str) -> str:
        """Return the text below a cell."""
        return self.page.readable(self.index(cell_id))

    def run(self, cell_id: str) -> None:
        """Run one cell."""
        self.page.begin_cell(self.index(cell_id))
        self.page.wait_idle()


@pytest.fixture(scope="module")
def ran(mhnb_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LessonInLab]:
    """Run the lesson once."""
    root = tmp_path_factory.mktemp("lesson")
    home = tmp_path_factory.mktemp("home")
    shutil.copy(LESSON, root / LESSON.name)
    own = Lab(root, MHNB_HOME=str(home))
    with no_leftovers(home), open_chromium() as browser, own as lab, lab.page(browser) as page:
        page.open(LESSON.name)
        page.run_all(limit_s=150)
        page.save()
        yield LessonInLab(page, root / LESSON.name)


def test_a_lesson_runs_top_to_bottom(ran: LessonInLab) -> None:
    """Each rank's output is shown, unsolved exercises say so, and the file has no widget."""
    text = ran.saved.read_text()
    assert WIDGET not in text
    assert "widgets" not in json.loads(text)["metadata"]
    for rank in range(4):
        assert f"rank {rank} of 4, process id" in text
    assert "NotYet on ranks 1-3" in ran.output("ex-log_once")
    assert "Click one, or type it" in text


def test_clicked_answer_outlives_the_kernel(ran: LessonInLab) -> None:
    """A click on a button stores the answer as text, and after a restart of the kernel the reveal still has it."""
    ran.run(PREDICT)
    button = ran.page.cell(ran.index(PREDICT)).get_by_role("button", name="False", exact=True)
    button.click()
    button.wait_for(state="detached")
    assert "kept · where_it_lives: False" in ran.output(PREDICT)
    ran.page.save()
    assert WIDGET not in ran.saved.read_text()
    ran.page.restart()
    ran.page.wait_idle()
    ran.run(PREDICT)
    ran.run(REVEAL)
    assert "you said False, and so it is." in ran.output(REVEAL)
    ran.page.save()
    assert WIDGET not in ran.saved.read_text()

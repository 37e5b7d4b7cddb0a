"""A lesson in a real JupyterLab: it runs to its end, a click answers a prediction, and the answer outlives the kernel."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.axe import violations
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
    stored: str
    """The file as it was saved after Run All."""
    home: Path
    """Where answers are kept."""

    def index(self, cell_id: str) -> int:
        """Return the position of a cell."""
        return next(i for i, cell in enumerate(json.loads(LESSON.read_text())["cells"]) if cell["id"] == cell_id)

    def output(self, cell_id: str) -> str:
        """Return the text below a cell."""
        return self.page.readable(self.index(cell_id))

    def forget(self) -> None:
        """Forget the guess, as before the first run."""
        shutil.rmtree(self.home / "lessons" / "where_it_lives", ignore_errors=True)

    def run(self, cell_id: str) -> None:
        """Run one cell."""
        self.page.start_cell(self.index(cell_id))
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
        saved = root / LESSON.name
        yield LessonInLab(page, saved, saved.read_text(), home)


def test_a_lesson_runs_top_to_bottom(ran: LessonInLab) -> None:
    """Each rank's output is shown, unsolved exercises say so, and the file has no widget."""
    text = ran.stored
    assert WIDGET not in text
    assert "widgets" not in json.loads(text)["metadata"]
    for rank in range(4):
        assert f"rank {rank} of 4, process id" in text
    assert "Click one, or type it" in text


def test_an_answer_that_is_not_right_yet_is_a_card(ran: LessonInLab) -> None:
    """Its cell fails without a traceback, nothing of it is red, and the card and the bar are readable and accessible."""
    output = ran.output("ex-log_once")
    assert "not yet · exercise 01.2 log_once · on ranks 1-3 · right on rank 0" in output
    assert "lesson 01 · ◐◐○ 0 of 3 exercises" in output
    cells = {cell["id"]: cell for cell in json.loads(ran.stored)["cells"]}
    exercises = [cell for name, cell in cells.items() if name.startswith("ex-")]
    assert len(exercises) == 3
    assert [
        each["output_type"] for cell in exercises for each in cell["outputs"] if each["output_type"] == "error"
    ] == []
    area = ran.page.cell(ran.index("ex-log_once")).locator(".jp-Cell-outputArea")
    assert area.locator('[data-mime-type*="error"], [data-mime-type*="stderr"], .mhnb-bad').count() == 0
    area.evaluate("area => { area.id = 'answer' }")
    assert violations(ran.page.page, "#answer .mhnb") == []


def test_the_bar_leads_to_the_next_exercise(ran: LessonInLab) -> None:
    """A click on its link scrolls to the heading of the next exercise."""
    from playwright.sync_api import expect

    heading = ran.page.page.get_by_role("heading", name="Exercise: gather the labels")
    link = ran.page.cell(ran.index("ex-log_once")).get_by_role("link", name="01.3 gather the labels")
    link.evaluate("link => link.scrollIntoView({block: 'end'})")
    expect(heading).not_to_be_in_viewport()
    link.click()
    expect(heading).to_be_in_viewport()


def test_clicked_answer_outlives_the_kernel(ran: LessonInLab) -> None:
    """A click on a button stores the answer as text, and after a restart of the kernel the reveal still has it. It stays then."""
    ran.forget()
    ran.run(PREDICT)
    button = ran.page.cell(ran.index(PREDICT)).get_by_role("button", name="False", exact=True)
    button.click()
    button.wait_for(state="detached")
    assert "you said" in (output := ran.output(PREDICT))
    assert "False" in output
    ran.page.save()
    assert WIDGET not in ran.saved.read_text()
    ran.page.restart()
    ran.page.wait_idle()
    ran.run(PREDICT)
    ran.run(REVEAL)
    assert "as predicted" in ran.output(REVEAL)
    ran.page.save()
    assert WIDGET not in ran.saved.read_text()
    ran.run(PREDICT)
    assert "you said False, which is right." in ran.output(PREDICT)
    assert ran.page.cell(ran.index(PREDICT)).get_by_role("button", name="True", exact=True).count() == 0


def test_a_prediction_can_be_changed(ran: LessonInLab) -> None:
    """The buttons come back with the cell, and say what was chosen; the last click counts."""
    ran.forget()
    ran.run(PREDICT)
    for choice in ("True", "False"):
        button = ran.page.cell(ran.index(PREDICT)).get_by_role("button", name=choice, exact=True)
        button.click()
        button.wait_for(state="detached")
        assert choice in ran.output(PREDICT)
        ran.run(PREDICT)
        assert f"You said {choice}; click to change it." in ran.output(PREDICT)

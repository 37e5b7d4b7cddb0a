"""Executed copies of the notebooks: when they are made anew, and what they do not contain."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

lessons: Any = importlib.import_module("mhnb_lessons")


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Path, Path]:
    """Return a notebook and a package."""
    notebook, package = tmp_path / "01_a.ipynb", tmp_path / "package"
    package.mkdir()
    notebook.write_text("{}")
    (package / "a.py").write_text("a = 1")
    return notebook, package


def test_a_change_is_executed_again(sources: tuple[Path, Path]) -> None:
    """The hash of a copy changes with the notebook, with a module's text and with its name, and with nothing else."""
    notebook, package = sources
    hashes = [lessons.hash_sources(notebook, package)]
    (package / "data.txt").write_text("not code")
    assert lessons.hash_sources(notebook, package) == hashes[0]
    (package / "a.py").write_text("a = 2")
    hashes.append(lessons.hash_sources(notebook, package))
    (package / "a.py").rename(package / "b.py")
    hashes.append(lessons.hash_sources(notebook, package))
    notebook.write_text("{ }")
    hashes.append(lessons.hash_sources(notebook, package))
    assert len(set(hashes)) == len(hashes)


def test_a_copy_replaces_older_ones(tmp_path: Path) -> None:
    """A new copy removes the older ones of the same notebook only, and shows no path of this machine."""
    kept, home = tmp_path / "kept", tmp_path / "home"
    kept.mkdir()
    for name in ("01_a-old.ipynb", "02_b-old.ipynb"):
        (kept / name).write_text("{}")
    lessons.write_copy({"text": f"log {home}/mhnb/rank0.log"}, kept / "01_a-new.ipynb", home)
    assert sorted(path.name for path in kept.iterdir()) == ["01_a-new.ipynb", "02_b-old.ipynb"]
    assert json.loads((kept / "01_a-new.ipynb").read_text()) == {"text": "log ~/mhnb/rank0.log"}


def test_what_is_there_is_not_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A notebook whose copy is there is not executed."""
    for notebook in lessons.list_notebooks():
        lessons.kept_copy(notebook, tmp_path).write_text("{}")
    lessons.execute_missing(lessons.list_notebooks(), tmp_path)
    assert capsys.readouterr().out == ""


def test_every_notebook_is_listed() -> None:
    """The tour and every lesson are executed."""
    assert [path.name[:2] for path in lessons.list_notebooks()] == [f"{number:02d}" for number in range(20)]

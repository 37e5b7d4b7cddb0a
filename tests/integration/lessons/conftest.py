"""Fixtures for the lessons: a state home of each test's own, so that answers of one do not show in another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def answers_home(tmp_path: Path, own_environment: None) -> Iterator[Path]:
    """Answers are kept here during one test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MHNB_HOME", str(tmp_path))
        yield tmp_path

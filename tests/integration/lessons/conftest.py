"""Fixtures for the lessons: each test has its own state directory, so that its answers do not appear in another test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def answers_home(tmp_path: Path, own_environment: None) -> Iterator[Path]:
    """The directory that stores answers during one test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MHNB_HOME", str(tmp_path))
        yield tmp_path

"""The tour as `mhnb demo` runs it, on real ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(300)
def test_demo_prints_output_of_every_rank(tmp_path: Path, leftovers: None) -> None:
    """The demo's output in a pipe has all sections, each rank's output and no colours; `--html` writes a page with its figure."""
    page = tmp_path / "tour.html"
    command = [sys.executable, "-m", "mhnb", "demo", "--html", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    for expected in ("A mesh", "rank 3: process ", "psum 2016", "ValueError", "4 ranks stopped"):
        assert expected in done.stdout
    text = page.read_text()
    assert "psum 2016" in text
    assert "img/00_hosts.svg" not in text
    assert 'src="data:image/svg+xml;base64,' in text

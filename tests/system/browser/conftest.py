"""Ends the JupyterLab that the tests of this folder share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.support.lab import shared_server


@pytest.fixture(scope="session", autouse=True)
def end_of_lab(own_environment: None) -> Iterator[None]:
    """End the server after the last test, if a test has started it."""
    yield
    if shared_server.cache_info().currsize:
        server = shared_server()
        server.stop()
        shutil.rmtree(server.root)

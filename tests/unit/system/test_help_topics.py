"""Help topics: sections of the page on messages, read without the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from mhnb.errors import InvalidRequest
from mhnb.system.help_topics import MESSAGES_PAGE, list_topics, read_topic


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder of documentation with one topic."""
    page = tmp_path / MESSAGES_PAGE
    page.parent.mkdir()
    page.write_text("# Messages\n\n(not-clean)=\n## NotClean\n\nThe cluster is [tainted](#tainted).\n")
    return tmp_path


def test_topic_is_plain_text(docs: Path) -> None:
    """A topic is the text of its section, without Markdown."""
    assert read_topic("not-clean", docs=docs) == "NotClean\n========\n\nThe cluster is tainted."
    assert read_topic("NotClean", docs=docs) == read_topic("not-clean", docs=docs)
    assert list_topics(docs=docs) == {"not-clean": "NotClean"}


def test_unknown_topic(docs: Path) -> None:
    """A topic that does not exist is None."""
    assert read_topic("order", docs=docs) is None


def test_missing_page_is_named(tmp_path: Path) -> None:
    """Without the page there are no topics, and reading one says what is missing."""
    assert list_topics(docs=tmp_path) == {}
    with pytest.raises(InvalidRequest, match=r"reference/messages\.md is missing from this installation"):
        read_topic("not-clean", docs=tmp_path)

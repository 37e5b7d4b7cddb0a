"""The help topics of mhnb, which are sections of `MESSAGES_PAGE`."""

from __future__ import annotations

from pathlib import Path

from mhnb.core.help_pages import find_section, list_sections, render_text
from mhnb.errors import InvalidRequest
from mhnb.system.resources import docs_dir

MESSAGES_PAGE = "reference/messages.md"
"""The page with a section for every error and note, in the folder of the documentation."""


def read_topic(name: str, *, docs: Path | None = None) -> str | None:
    """Return a help topic as plain text, or None if unknown.

    Args:
        name: an anchor such as `order-mismatch`, or the name of an error class.
        docs: the folder of the documentation; None for the one that comes with mhnb.

    Raises:
        InvalidRequest: the page does not come with this installation.
    """
    section = find_section(_read_page(docs), name)
    return None if section is None else render_text(section)


def list_topics(*, docs: Path | None = None) -> dict[str, str]:
    """Return the help topics' titles by name; empty without the page."""
    try:
        return list_sections(_read_page(docs))
    except InvalidRequest:
        return {}


def _read_page(docs: Path | None) -> str:
    try:
        return ((docs or docs_dir()) / MESSAGES_PAGE).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InvalidRequest(
            f"the help page {MESSAGES_PAGE} is missing from this installation ({error})\n  Fix: pip install --force-reinstall mhnb"
        ) from error

"""Format the path of a log file in a page: as a link if JupyterLab can open it, otherwise as a path to copy.

A browser opens no `file://` link from a page that a server delivered. JupyterLab opens a link relative to the notebook,
but shows no hidden folder and nothing above the folder that it was started in.
mhnb only knows whether a file is below the notebook's folder.
"""

from __future__ import annotations

from html import escape
from pathlib import PurePosixPath
from urllib.parse import quote

__all__ = ["log_html"]


def log_html(path: str, folder: str = "") -> str:
    """Format a path as a link or as text to copy.

    Args:
        path: of the log file.
        folder: the notebook's folder; empty if it is unknown.

    >>> log_html("/data/nb/logs/rank0.log", "/data/nb")
    '<a href="logs/rank0.log" title="opens in JupyterLab">/data/nb/logs/rank0.log</a>'
    >>> log_html("/data/.local/rank0.log", "/data/nb")
    '<code style="user-select:all" title="a click selects it">/data/.local/rank0.log</code>'
    """
    shown = escape(path, quote=False)
    below = _below(path, folder)
    if below:
        return f'<a href="{quote(below)}" title="opens in JupyterLab">{shown}</a>'
    return f'<code style="user-select:all" title="a click selects it">{shown}</code>'


def _below(path: str, folder: str) -> str:
    """Return the path relative to the folder; an empty string if it is elsewhere or hidden."""
    if not folder or not PurePosixPath(path).is_relative_to(folder):
        return ""
    below = PurePosixPath(path).relative_to(folder)
    return "" if any(part.startswith(".") for part in below.parts) else str(below)

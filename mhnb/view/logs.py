"""The path of a log file in a page, so that it leads somewhere: a link that JupyterLab opens where it can, else a path to copy.

A browser opens no `file://` from a page that a server gave. JupyterLab opens a link relative to the notebook, but shows no hidden
folder and nothing above the folder that it was started in; whether a file below the notebook's is in its reach is all that is known here.
"""

from __future__ import annotations

from html import escape
from pathlib import PurePosixPath
from urllib.parse import quote

__all__ = ["log_html"]


def log_html(path: str, folder: str = "") -> str:
    """Write a path.

    Args:
        path: of the file.
        folder: the notebook's; empty where it is not known.

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
    """The path from the folder on; empty where it is elsewhere or hidden."""
    if not folder or not PurePosixPath(path).is_relative_to(folder):
        return ""
    below = PurePosixPath(path).relative_to(folder)
    return "" if any(part.startswith(".") for part in below.parts) else str(below)

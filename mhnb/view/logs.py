"""Format the path of a log file in a page: as a link if JupyterLab can open it, otherwise as a path to copy.

A browser opens no `file://` link from a page that a server delivered. JupyterLab opens a link relative to the notebook,
but shows no hidden folder and nothing above the folder that it was started in.
mhnb only knows whether a file is below the notebook's folder.
"""

from __future__ import annotations

from html import escape
from pathlib import PurePosixPath
from urllib.parse import quote

__all__ = ["format_log_html"]


def format_log_html(path: str, notebook_dir: str = "") -> str:
    """Format a path as a link or as text to copy.

    Args:
        path: of the log file.
        notebook_dir: the notebook's folder; empty if it is unknown.

    >>> format_log_html("/data/nb/logs/rank0.log", "/data/nb")
    '<a href="logs/rank0.log" title="opens in JupyterLab">/data/nb/logs/rank0.log</a>'
    >>> format_log_html("/data/.local/rank0.log", "/data/nb")
    '<code style="user-select:all" title="a click selects it">/data/.local/rank0.log</code>'
    """
    shown = escape(path, quote=False)
    relative = _relative_path(path, notebook_dir)
    if relative:
        return f'<a href="{quote(relative)}" title="opens in JupyterLab">{shown}</a>'
    return f'<code style="user-select:all" title="a click selects it">{shown}</code>'


def _relative_path(path: str, notebook_dir: str) -> str:
    """Return the path relative to the folder; an empty string if it is elsewhere or hidden."""
    if not notebook_dir or not PurePosixPath(path).is_relative_to(notebook_dir):
        return ""
    relative = PurePosixPath(path).relative_to(notebook_dir)
    return "" if any(part.startswith(".") for part in relative.parts) else str(relative)

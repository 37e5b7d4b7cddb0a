"""`mhnb demo`: run the tour in a kernel, print it, write HTML."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from mhnb.errors import MhnbError
from mhnb.system.resources import notebooks_dir
from mhnb.system.run_dir import read_running_clusters

_CELL_TIMEOUT_S = 300
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_TITLE = re.compile(r"#+ (.+)")
_BOLD, _DIM = 1, 2


def run_demo(html_path: Path) -> int:
    """Run the tour; return 0 if every cell behaved as expected.

    Args:
        html_path: path of the page to write.

    Raises:
        MhnbError: the packages that run notebooks are not installed.
    """
    try:
        import nbformat
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError
    except ModuleNotFoundError as error:
        raise MhnbError(
            f"{error.name} is not installed, and the demo needs it\n  Fix: pip install 'mhnb[lab]'"
        ) from error
    notebook: Any = nbformat.read(notebooks_dir() / "00_tour.ipynb", as_version=4)
    quiet = ["--IPKernelApp.log_level=ERROR"]
    client = NotebookClient(
        notebook,
        timeout=_CELL_TIMEOUT_S,
        kernel_name="python3",
        on_cell_executed=partial(_print_cell, notebook.cells),
        extra_arguments=quiet,
    )
    try:
        client.execute()
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    _write_page(notebook, html_path)
    print(f"\nwrote the same as an HTML page: {html_path}")
    return 0


def _print_cell(cells: Sequence[Any], *, cell: Any, cell_index: int, **_: Any) -> None:
    """Print a finished cell and its outputs, below its section's title."""
    if cell.cell_type != "code":
        return
    before = cells[cell_index - 1] if cell_index else cell
    if before.cell_type == "markdown" and (title := _TITLE.match(before.source)):
        print(f"\n{_style_text(title[1], _BOLD)}")
    print(f"\n{_style_text(f'[{cell.execution_count}]', _DIM)}")
    print(textwrap.indent(cell.source, f"  {_style_text('>', _DIM)} "))
    for output in cell.outputs:
        print(_format_output(output), flush=True)
    if "%mhjax start" in cell.source:
        _print_processes()


def _format_output(output: Any) -> str:
    if output.output_type == "stream":
        text = str(output.text)
    elif output.output_type == "error":
        text = "\n".join(output.traceback)
    else:
        text = str(output.data.get("text/plain", ""))
    return (text if sys.stdout.isatty() else _ANSI.sub("", text)).rstrip("\n")


def _style_text(text: str, style: int) -> str:
    # In a file or a pipe the escape codes would be visible.
    return f"\033[{style}m{text}\033[0m" if sys.stdout.isatty() else text


def _print_processes() -> None:
    """Show that ranks are processes: print each one's id and status."""
    for record in read_running_clusters(os.environ):
        if os.getpid() in [parent.pid for parent in psutil.Process(record.owner_pid).parents()]:
            for rank, pid in enumerate(record.rank_pids):
                # None for a rank that has not reported its id yet.
                is_alive = pid is not None and psutil.pid_exists(pid)
                print(f"  rank {rank}: process {pid} {psutil.Process(pid).status() if is_alive else 'has ended'}")


def _write_page(notebook: Any, html_path: Path) -> None:
    from nbconvert import HTMLExporter

    # The page is written to any folder, so it contains the figures, which are beside the notebook.
    exporter = HTMLExporter(template_name="lab", embed_images=True)
    page, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"path": str(notebooks_dir())}})
    html_path.write_text(page, encoding="utf-8")

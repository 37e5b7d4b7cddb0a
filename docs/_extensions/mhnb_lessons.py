"""Executes the notebooks with real ranks, for their pages in the documentation.

Executed copies are kept in a folder, each under a hash of the notebook and of all of mhnb's source, so that a build executes only
what has changed. The notebooks themselves stay without outputs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
KEPT = ROOT / "build" / "lessons"
_AT_A_TIME = 2
"""Notebooks that run at the same time. Each starts 4 ranks or more."""
_CELL_TIMEOUT_S = 180


def list_notebooks(folder: Path = NOTEBOOKS) -> list[Path]:
    """Return the tour and the lessons, in order."""
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def hash_sources(notebook: Path, package: Path = ROOT / "mhnb") -> str:
    """Return a hash of the notebook and of the modules of mhnb, which together decide the outputs."""
    found = hashlib.sha256(notebook.read_bytes())
    for path in sorted(package.rglob("*.py")):
        found.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def kept_copy(notebook: Path, kept: Path = KEPT) -> Path:
    """Return the path of the executed copy of a notebook, which need not exist."""
    return kept / f"{notebook.stem}-{hash_sources(notebook)}.ipynb"


def execute_missing(notebooks: Sequence[Path], kept: Path = KEPT) -> None:
    """Execute the notebooks that have no executed copy, a few at a time.

    Raises:
        CellExecutionError: a cell failed that has no `raises-exception` tag.
    """
    missing = [notebook for notebook in notebooks if not kept_copy(notebook, kept).exists()]
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        for notebook, seconds in zip(missing, pool.map(lambda path: _execute(path, kept), missing), strict=True):
            print(f"{notebook.name}: executed in {seconds:.0f} s", flush=True)


def _execute(notebook: Path, kept: Path) -> float:
    """Execute one notebook in a kernel of its own, keep the executed copy, and return how many seconds it took."""
    import nbformat
    from nbclient import NotebookClient

    began = time.monotonic()
    read: Any = nbformat.read(notebook, as_version=4)
    # A short path, because socket paths are below it.
    home = Path(tempfile.mkdtemp(prefix="mhnb-"))
    try:
        client = NotebookClient(
            read,
            timeout=_CELL_TIMEOUT_S,
            kernel_name="python3",
            resources={"metadata": {"path": str(home)}},
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
        client.execute(env=_kernel_environment(home))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    write_copy(read, kept_copy(notebook, kept), home)
    return time.monotonic() - began


def _kernel_environment(home: Path) -> dict[str, str]:
    """Return an environment without the user's settings of JAX, IPython and mhnb, which would change the outputs."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    own = {"MHNB_HOME": home / "mhnb", "IPYTHONDIR": home / "ipython", "MPLCONFIGDIR": home / "mpl"}
    for folder in own.values():
        folder.mkdir()
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {**inherited, **{name: str(folder) for name, folder in own.items()}, "PYTHONPATH": paths}


def write_copy(executed: Any, path: Path, home: Path) -> None:
    """Keep an executed notebook, without this machine's paths, in the place of older copies of the same notebook.

    Args:
        executed: the notebook, as nbformat reads it.
        path: where to keep it.
        home: the folder in which it ran.
    """
    text = json.dumps(executed, indent=1, ensure_ascii=False)
    for real, shown in ((home, "~"), (ROOT, "mhnb-checkout"), (Path.home(), "~")):
        text = text.replace(f"{real}/", f"{shown}/")
    path.parent.mkdir(parents=True, exist_ok=True)
    for older in path.parent.glob(f"{path.name[:3]}*.ipynb"):
        older.unlink()
    path.write_text(text, encoding="utf-8")

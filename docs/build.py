"""Builds the documentation site: `make docs`, or `python docs/build.py --help`.

The pages of docs/, and the notebooks with the outputs of real ranks, are gathered in one folder, from which Sphinx builds.
Every warning is an error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS / "_extensions"))

from mhnb_lessons import NOTEBOOKS, execute_missing, kept_copy, list_notebooks  # noqa: E402  # found by the path above


def gather(source: Path, *, executed: bool) -> None:
    """Gather the pages and the notebooks in the folder that Sphinx reads, which is made anew.

    Args:
        source: the folder.
        executed: take the executed copies of the notebooks, which must exist.
    """
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("_extensions", "__pycache__", "build.py"))
    lessons = source / "lessons"
    for notebook in list_notebooks():
        shutil.copy(kept_copy(notebook) if executed else notebook, lessons / notebook.name)
    shutil.copy(NOTEBOOKS / "README.md", lessons / "README.md")
    shutil.copy(ROOT / "CHANGELOG.md", source / "changelog.md")
    if (NOTEBOOKS / "img").is_dir():
        # Its README is for readers of the folder; as a page it would be in no table of contents.
        shutil.copytree(NOTEBOOKS / "img", lessons / "img", ignore=shutil.ignore_patterns("*.md"), dirs_exist_ok=True)


def build(source: Path, output: Path) -> int:
    """Run Sphinx, with warnings as errors, and return its exit status."""
    # All of it each time, in seconds: the generated pages depend on more files than Sphinx knows.
    if (output / ".buildinfo").exists():
        shutil.rmtree(output)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-n",
        "-q",
        "-j",
        "auto",
        "--fresh-env",
    ]
    doctrees = output.with_name(f".{output.name}-doctrees")
    environment = {**os.environ, "MHNB_DOCS_ROOT": str(ROOT)}
    return subprocess.run(
        [*command, "-d", str(doctrees), str(source), str(output)], env=environment, check=False
    ).returncode


def main() -> int:
    """Execute what is missing, build, and say where the pages are."""
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "docs", help="(default: build/docs)")
    parser.add_argument(
        "--without-outputs", action="store_true", help="show the lessons without outputs; nothing is executed"
    )
    args = parser.parse_args()
    began, output = time.monotonic(), args.output.resolve()
    if not args.without_outputs:
        execute_missing(list_notebooks())
    source = output.with_name(f".{output.name}-source")
    gather(source, executed=not args.without_outputs)
    status = build(source, output)
    took = f"{time.monotonic() - began:.0f} s"
    outcome = f"FAILED after {took}; the warnings are above" if status else f"{output / 'index.html'} ({took})"
    print(f"documentation: {outcome}")
    return status


if __name__ == "__main__":
    sys.exit(main())

"""The outputs on the documentation's pages are real: each page runs as one notebook session with ranks of its own.

`MHNB_WRITE_DOCS=1 pytest tests/integration/pages/test_docs_pages.py` writes the outputs that differ into the pages.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.docs_pages import is_same, normalize, parse_blocks, rewrite, run_blocks
from tests.support.source import ROOT

_LOADS_EXTENSION = "%load_ext mhnb"
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if any(block.source.startswith(_LOADS_EXTENSION) for block in parse_blocks(path.read_text(encoding="utf-8")))
]
"""A page is run if a block of it that runs loads the extension."""

_COMPILED = ("docs/how-to/fit.md",)
"""Pages whose outputs are of the compilers of other machines."""
_RUN_DIR = re.compile(r"/[\w./-]+/mhnb_home/(?=\w+\.\d+\.\d+/)")

_SAMPLE = """\
```
%mhjax start
```

```text
ready in 1.2 s, pid 12
...
done
```

```python
x = 1
```

```ipython
%mhjax start --hosts a,b
```

```python
# in the notebook
x
```

Words.

```text
not an output
```

```console
$ mhnb list
default   running
```

```
%%mhjax
hang()
```

```console
$ mhnb where default
waiting
```

Press Ctrl-C.

```text
interrupted
```
"""


def _tidy(text: str) -> str:
    """Return an output as a page shows it: with the default folder of logs instead of the suite's."""
    text = _RUN_DIR.sub("~/.local/state/mhnb/", text)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


@pytest.mark.ranks
@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.requires_part("compilers") if name in _COMPILED else ()) for name in PAGES],
)
def test_a_page_shows_real_output(name: str, leftovers: None, tmp_path: Path) -> None:
    """Each block of a page has the output that the page shows below it."""
    path = ROOT / name
    page = path.read_text(encoding="utf-8")
    blocks = parse_blocks(page)
    assert [block for block in blocks if block.expected is not None]
    outputs = run_blocks(blocks, tmp_path)
    if os.environ.get("MHNB_WRITE_DOCS"):
        path.write_text(rewrite(page, list(zip(blocks, outputs, strict=True)), _tidy), encoding="utf-8")
        return
    for block, actual in zip(blocks, outputs, strict=True):
        if block.expected is not None and not is_same(block.expected, actual, varies=block.varies):
            assert normalize(actual) == normalize(block.expected), f"{name}: the output of\n{block.source}"


def test_which_blocks_run() -> None:
    """Cells and commands run; other languages do not; only a `text` fence directly below a cell is its output."""
    blocks = parse_blocks(_SAMPLE)
    assert [(block.source, block.kind, block.expected) for block in blocks] == [
        ("%mhjax start\n", "cell", "ready in 1.2 s, pid 12\n...\ndone\n"),
        ("# in the notebook\nx\n", "cell", None),
        ("mhnb list", "command", "default   running\n"),
        ("%%mhjax\nhang()\n", "hanging cell", "interrupted\n"),
        ("mhnb where default", "command", "waiting\n"),
    ]


@pytest.mark.parametrize(
    ("shown", "actual", "same"),
    [
        ("ready in 1.2 s", "ready in 340 ms", True),
        ("7 meshes in 1 min 34 s", "7 meshes in 41 s", True),
        ("rank 0  pid 7    ok", "rank 0  pid 12345  ok", True),
        ("log ~/.local/state/mhnb/default.1.1/log", "log /tmp/a/mhnb_home/default.22.1/log", True),
        ("first\n...\nlast", "first\na\nb\nlast\n", True),
        ("first\n...\nlast", "first\na\nb\n", False),
        ("   0  host0  9  alive  2  220.4 MiB  In [8]", "   0  host0  12345  alive  2  1.1 GiB  In [8]", True),
        ("x  1.0 MiB", "x  2.0 MiB", False),
        ("total 28", "total 27", False),
        ("", "something", False),
        ("done", "done\nrank 3 came last at 19 of 60 launches; the others waited 1.0 s", True),
        ("rank 3 came last at 1 of 2 launches; so", "rank 2 came last at 1 of 2 launches; so", False),
    ],
)
def test_what_counts_as_the_same_output(shown: str, actual: str, *, same: bool) -> None:
    """Durations, process ids and paths may differ, and `...` stands for any lines; all else must be equal."""
    assert is_same(shown, actual) == same


def test_numbers_of_a_varying_output() -> None:
    """In an output that is marked with `varies`, numbers and hashes may differ, and nothing else."""
    assert is_same("rank 0 has 3b53, -1.5", "rank 0 has a9, 12.25", varies=True)
    assert not is_same("rank 0 has 3b53", "rank 0 lost a9", varies=True)


def test_outputs_are_written_into_the_page() -> None:
    """Rewriting replaces the outputs that differ, and leaves the others and the text as they are."""
    blocks = parse_blocks(_SAMPLE)
    same = ["ready in 9 s, pid 1\ndone", "1", "default   running", "interrupted", "waiting"]
    assert rewrite(_SAMPLE, list(zip(blocks, same, strict=True))) == _SAMPLE
    new = ["failed", "1", "default   stopped", "clean", "waiting"]
    expected = _SAMPLE.replace("ready in 1.2 s, pid 12\n...\ndone", "failed").replace("running", "stopped")
    assert rewrite(_SAMPLE, list(zip(blocks, new, strict=True))) == expected.replace("interrupted", "clean")


def test_a_shortened_output_stays_short() -> None:
    """An output that the page shortens is written with as many lines before and after the `...`."""
    page = "```\n%mhjax start\n```\n\n```text\nold\n  ...\nend\n```\n"
    (block,) = parse_blocks(page)
    assert rewrite(page, [(block, "new\n1\n2\n3\nend")]) == page.replace("old", "new")


_SESSION = """\
```python
# in the notebook
print(input("rank 0 (stopped 0-1; waiting 2-3) > ").upper())
```

```text
rank 0 (stopped 0-1; waiting 2-3) > p x
P X
```
"""


def test_a_session_is_typed(tmp_path: Path) -> None:
    """What follows a prompt of the debugger is typed when the cell asks for it."""
    (block,) = parse_blocks(_SESSION)
    assert block.typed == ["p x"]
    assert run_blocks([block], tmp_path) == [block.expected]


def test_a_line_that_no_prompt_asks_for_is_a_fault(tmp_path: Path) -> None:
    """A page that shows more typed lines than the cell asks for does not show the real output."""
    (block,) = parse_blocks(_SESSION.replace("P X\n", "P X\nrank 0 (stopped 0-1; waiting 2-3) > c\n"))
    (actual,) = run_blocks([block], tmp_path)
    assert block.expected is not None
    assert not is_same(block.expected, actual)

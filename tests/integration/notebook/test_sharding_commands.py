"""`%mhjax layout` and `%mhjax plan`: what is drawn, what is refused, and how differences between ranks are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from mhnb.cluster.sharding import LayoutView
from mhnb.magics.sharding import show_views
from mhnb.sharding.layout import Layout
from tests.integration.notebook.conftest import Session
from tests.support.view_samples import RecordingScreen

SETUP = """%%mhjax
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
laid_mesh = jax.make_mesh((2, 2), ("data", "model"))
def lay(shape, *spec):
    return jax.make_array_from_callback(shape, NamedSharding(laid_mesh, P(*spec)), lambda i: np.zeros(shape, "f4")[i])
laid = {"w": lay((64, 64), "data", "model"), "v": lay((64, 64)), "n": 3}
row = lay((4, 6), "data")
"""


@pytest.fixture
def laid(nb: Session) -> Session:
    """A session whose ranks hold arrays."""
    nb.run(SETUP)
    return nb


def test_an_array_is_drawn(laid: Session) -> None:
    """An array is drawn; quotes and brackets of the expression reach the ranks as typed."""
    assert laid.run("%mhjax layout laid['w']").out == (
        "laid['w']  f32[64,64]  P('data', 'model') on mesh (data 2, model 2)     4.0 KiB per device\n"
        "              cols 0:32  cols 32:64\n"
        "rows 0:32     0:0        0:1         host0\n"
        "rows 32:64    1:0        1:1         host1\n"
    )


def test_a_pytree_is_a_table(laid: Session, tmp_path: Path) -> None:
    """A pytree is a table with one row per leaf and a mark at the replicated matrix; `--csv` writes it to a file."""
    lines = laid.run("%mhjax layout laid").out.splitlines()
    assert lines[0].startswith("laid  2 arrays · 32.0 KiB · 20.0 KiB per device")
    assert next(line for line in lines if "→" in line).split()[:2] == ["→", "['v']"]
    file = tmp_path / "my laid.csv"
    assert "3 rows written to" in laid.run(f'%mhjax layout laid --csv "{file}"').out
    assert file.read_text().splitlines()[2].startswith("['v'],64x64,float32,P(),16384")


def test_mesh_is_shown_by_host(laid: Session) -> None:
    """A mesh is shown as its devices by host, with the axis that crosses hosts."""
    out = laid.run("%mhjax layout laid_mesh").out
    assert out.splitlines()[0] == "laid_mesh (data 2, model 2) · 4 devices on 2 hosts"
    assert "data crosses 2 hosts · model stays inside a host" in out


def test_reshard_is_described(laid: Session) -> None:
    """`--to` shows both layouts and how much would move, and moves nothing; quotes around the spec are optional."""
    quoted = laid.run("""%mhjax layout row --to "P(None, 'model')" """).out
    assert quoted.startswith("row  f32[4,6]  P('data') → P(None, 'model')     96 B move · 96 B of it across hosts")
    assert "collective: all-to-all over data" in quoted.splitlines()[0]
    assert laid.run("%mhjax layout row --to P(None, 'model')").out == quoted


def test_differing_ranks_are_shown_separately(laid: Session) -> None:
    """If the ranks differ, the heading names them and each view is drawn; `--to` and `--csv` need a single layout."""
    laid.run("%%mhjax\nodd = row if jax.process_index() == 0 else 'nothing'")
    out = laid.run("%mhjax layout odd").out
    assert out.startswith("the layout of odd differs: rank 1 vs. rank 0")
    assert "odd on rank 0  f32[4,6]" in out
    assert "rank 1: layout: expected a jax.Array" in out
    assert "--to: the layout of odd differs between ranks" in laid.expect_usage_error("%mhjax layout odd --to P()")


def test_local_arrays_have_a_note(laid: Session) -> None:
    """Arrays that are local to each rank are shown as one view with a note."""
    laid.run("%%mhjax\nimport jax.numpy as jnp\nlone = jnp.zeros(4) + jax.process_index()")
    out = laid.run("%mhjax layout lone").out
    assert out.startswith("lone  f32[4]  on 1 device, without a mesh     16 B per device")
    assert "local: ranks 0-1 each have their own arrays; this shows those of rank 0" in out


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("layout", "the following arguments are required"),
        ("layout nowhere", "unknown variable 'nowhere'"),
        ("layout row + 1", "may compute something"),
        ("layout row['a", "not closed"),
        ("layout laid['n']", "layout laid['n']: expected a jax.Array"),
        ("layout row --to P('z')", "the mesh has 'data', 'model'"),
        ("layout row --to P(None, 'data', None)", "has 3 entries"),
        ("layout laid --to P()", "needs an array on a mesh"),
        ("layout row --csv x.csv", "writes the table of a pytree"),
    ],
)
def test_bad_lines_are_usage_errors(laid: Session, line: str, reason: str) -> None:
    """A bad line is a UsageError that reason what is wrong, and no rank runs anything."""
    assert reason in laid.expect_usage_error(f"%mhjax {line}")


def test_a_plan_needs_no_cluster(idle: Session) -> None:
    """In a terminal the plan is text: the arrays as typed, the compiler's collectives, and reasons for invalid input."""
    line = """%mhjax plan --hosts 2 --devices 2 --mesh "data 2, model 2" --program "lambda a: a.sum()" """
    out = idle.run(line + """--array "a f32[8,6] P('data', None)" """).out
    assert out.splitlines()[0] == "plan · 2 hosts × 2 devices · mesh (data 2, model 2) on 4 of 4"
    assert "rows 4:8    1:0 1:1     host1" in out
    assert "all-reduce" in out
    assert "a_sharding = NamedSharding(mesh, P('data', None))  # f32[8,6]" in out
    twice = '%mhjax plan --array "a f32[8]" --array "a f32[4]"'
    assert "two arrays are named a; give each a name of its own" in idle.expect_usage_error(twice)
    bad = idle.run("""%mhjax plan --mesh "data 4, model 2" --array "a f32[6] P('data')" """).out
    assert "✗ a: P('data') shards dim 0 of size 6" in bad
    assert "JAX: … implies that array axis 0 is partitioned 4 times" in bad


@pytest.mark.parametrize("flags", ["", "--hosts 8", '--program "" --mesh "data 4"'])
def test_a_front_end_gets_controls(idle: Session, monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    """A front end gets controls for any initial plan; text is for terminals and for `--text`."""
    screen = RecordingScreen()
    monkeypatch.setattr("mhnb.magics.sharding.detect_screen", lambda: screen)
    idle.run(f"%mhjax plan {flags}")
    assert ([act[0] for act in screen.calls], screen.written) == (["show", "show"], [])
    assert "application/vnd.jupyter.widget-view+json" in str(screen.calls[1])
    idle.run(f"%mhjax plan --text {flags}")
    assert (len(screen.calls), len(screen.written)) == (2, 1)


def test_plan_accepts_notebook_function(idle: Session) -> None:
    """`%mhjax plan` accepts a function by name, wrapped as by `jax.jit` or not, and compiles it only in the helper process."""
    idle.run("from functools import wraps\ndef wrapped(function):\n    return wraps(function)(lambda *a: None)")
    idle.run("def add_up(a):\n    return a.sum()\nwrapped_up = wrapped(add_up)")
    for name in ("add_up", "wrapped_up"):
        line = f"""%mhjax plan --mesh "data 4" --array "a f32[8] P('data')" --program {name}"""
        assert "jit(add_up)" in idle.run(line).out


def test_html_heading_escapes_expression() -> None:
    """The heading escapes what the user typed, because it can contain HTML."""
    screen = RecordingScreen()
    layout = Layout.of((4,), {"x": 2}, "P('x')")
    show_views("p['<b>']", [LayoutView((0,), layout), LayoutView((1,), "nothing")], screen=screen)
    html = screen.calls[0][1]["text/html"]
    assert "the layout of p['&lt;b&gt;'] differs: rank 1 vs. rank 0" in html
    assert "<b>'" not in html

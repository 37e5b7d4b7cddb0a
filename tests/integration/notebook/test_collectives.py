"""`%mhjax collectives f(args)` and `%%mhjax --collectives`, as a user types them."""

from __future__ import annotations

import re

import pytest

from mhnb.cluster.cluster import Cluster
from tests.integration.notebook.conftest import Session

SETUP = """%%mhjax
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
grid = Mesh(np.array(jax.devices()).reshape(2, 2), ('data', 'model'), axis_types=(AxisType.Auto,) * 2)
batch = jax.make_array_from_callback((8, 16), NamedSharding(grid, P('data')), lambda i: np.ones((8, 16), np.float32)[i])
def total(a, scale=1.0, name='a b'):
    return a.sum(0)
total = jax.jit(total, static_argnames='name')
"""

TABLE = r"""jit\(total\) +axis +count +bytes/device +across hosts +line
  all-reduce +f32\[16\] +data \(hosts\) +1 +64 B +32 B +In \[\d+\], line 7
  total +64 B +32 B
"""


@pytest.fixture
def ready(nb: Session) -> Session:
    """A session with a mesh of (data 2, model 2), a batch, and a function with one all-reduce."""
    nb.run(SETUP)
    return nb


def test_call_is_analysed_without_running(ready: Session, cluster: Cluster) -> None:
    """`%mhjax collectives` shows one table for all ranks and runs no cell."""
    before = cluster.run("0").seq
    assert re.fullmatch(TABLE, ready.run("%mhjax collectives total(batch)").out)
    assert cluster.run("0").seq == before + 1


def test_quotes_and_keywords_reach_the_ranks(ready: Session) -> None:
    """The call reaches the ranks as Python, not as shell words: quotes and keyword arguments are preserved."""
    assert re.fullmatch(TABLE, ready.run("""%mhjax collectives total(batch, name='two  words "x"')""").out)


@pytest.mark.parametrize("asked", ["--why total(batch)", "total(batch) --why"])
def test_why_adds_operation_and_line(ready: Session, asked: str) -> None:
    """`--why`, before or after the call, adds the operation and its line to each row; an unstated sharding is "not known"."""
    lines = ready.run(f"%mhjax collectives {asked}").out.splitlines()
    assert re.fullmatch(r" +jit\(total\)/.*reduce_sum, In \[\d+\], line 7: .* → not known", lines[2])


def test_cell_report_counts_launches(ready: Session) -> None:
    """`--collectives` shows the same row as before the launch, with the number of launches, after the cell's own output."""
    output = ready.run("%%mhjax --collectives\nfor _ in range(3): sums = total(batch)\nprint('done')").out
    before, _, table = output.partition("jit(total), launched 3 times")
    assert "done" in before
    assert re.search(r"all-reduce +f32\[16\] +data \(hosts\) +1 +64 B +32 B +In \[\d+\], line 7\n", table)
    assert re.search(r"of 3 launches +192 B +96 B\n", table)


def test_cell_without_launches_is_reported(ready: Session) -> None:
    """`--collectives` reports if a cell launched no program of several ranks."""
    assert ready.run("%%mhjax --collectives\n1").out.endswith("no program with a collective was launched\n")


def test_failed_cell_still_reports_launches(ready: Session) -> None:
    """A failed cell shows both its error and the report of its collectives."""
    outcome = ready.try_("%%mhjax --collectives --quiet\nsums = total(batch)\n1 / 0")
    assert type(outcome.error).__name__ == "CellFailed"
    assert "ZeroDivisionError" in outcome.out
    assert "all-reduce" in outcome.out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "collectives: expected a call such as step(params, batch)"),
        ("--why", "collectives: expected a call such as step(params, batch)"),
        ("total", "collectives: expected a call such as step(params, batch), got 'total'"),
        ("total(batch", "was never closed"),
        ("totl(batch)", "did you mean total?"),
        ("total(bach)", "did you mean batch"),
        ("total(batch + 1)", "assign it to a variable"),
        ("batch(total)", "is not a function but"),
        ("--because total(batch)", "--because"),
    ],
)
def test_bad_input_is_one_usage_error(ready: Session, typed: str, said: str) -> None:
    """Each bad input raises a UsageError that names the input and the next step, and launches nothing."""
    assert said in ready.expect_usage_error(f"%mhjax collectives {typed}")


def test_plain_function_is_analysed_as_jitted(ready: Session) -> None:
    """A plain function is analysed as if jitted, with a note, because JAX would launch its operations one by one."""
    out = ready.run("%mhjax collectives (lambda a: a.sum(0))(batch)").out
    assert "this call, line 1" in out
    assert out.splitlines()[-1].startswith("not jitted: this is the program that jax.jit would create")
    assert "not jitted" not in ready.run("%mhjax collectives total(batch)").out


def test_tracing_output_is_below_report(ready: Session) -> None:
    """Output printed during tracing is shown below the report, once if all ranks printed the same, not with the previous cell."""
    ready.run("%%mhjax\nimport sys\n@jax.jit\ndef loud(a):\n    print('shape', a.shape)\n    return a.sum(0)\n")
    out = ready.run("%mhjax collectives loud(batch)").out
    assert "after its end" not in out
    assert out.endswith("printed while it was traced (nothing has run):\n  shape (8, 16)\n")
    ready.run("%%mhjax\n@jax.jit\ndef loud(a):\n    print(jax.process_index(), file=sys.stderr)\n    return a.sum(0)\n")
    out = ready.run("%mhjax collectives loud(batch)").out
    assert out.endswith("printed while it was traced (nothing has run):\n  rank 0: 0\n  rank 1: 1\n")

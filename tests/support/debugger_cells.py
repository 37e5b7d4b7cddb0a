"""Cells for tests of the debugger in a front end: what the ranks need, cells that stop, and the check that a cluster is usable.

The cells are text, as a user types them: the same ones are used in a kernel, in a terminal and in JupyterLab.
"""

from __future__ import annotations

import re

__all__ = [
    "SETUP",
    "STOPS_ALL",
    "STOPS_RANK_1",
    "STOPS_RANK_2",
    "bare",
    "find_sums",
    "sum_cell",
]

SETUP = """\
%%mhjax
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
me = jax.process_index()
rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
total = jax.jit(lambda a: a.sum())
def add(own):
    shape = (jax.device_count(),)
    return int(total(jax.make_array_from_callback(shape, rows, lambda index: np.array([own], np.int32))))
print("sum", add(me))
"""
"""`add` adds up one number of each rank, which is a collective: the value shows what every rank gave."""
STOPS_ALL = """\
%%mhjax
own = me + 1
breakpoint()
own = own * 10
print("sum", add(own))
"""
"""Every rank stops at line 3. With 4 ranks the sum is 100 if nothing is changed."""
STOPS_RANK_2 = """\
%%mhjax
own = me
if me == 2:
    breakpoint()
print("sum", add(own))
"""
"""Rank 2 stops at line 4; the others wait for it at line 5. With 4 ranks the sum is 6 if nothing is changed."""
STOPS_RANK_1 = STOPS_RANK_2.replace("me == 2", "me == 1")
"""Rank 1 stops at line 4; the others wait for it at line 5."""
_SUM = re.compile(r"\bsum (-?\d+)")


def sum_cell(base: int) -> str:
    """Return a cell without a debugger, whose sum on 2 ranks is 2 * base + 1, and on 4 ranks 4 * base + 6."""
    return f'%%mhjax\nprint("sum", add(me + {base}))\n'


def find_sums(shown: str) -> list[int]:
    """Return the sums that a cell shows."""
    return [int(number) for number in _SUM.findall(shown)]


def bare(cell: str) -> str:
    """Return what the ranks run of a cell: the text without its magic, as in a script."""
    return cell.partition("\n")[2]

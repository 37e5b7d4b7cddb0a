"""Replica groups: all spellings of XLA give the same groups, and any other spelling is an error."""

from __future__ import annotations

from itertools import permutations
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhnb.errors import HloError, UnknownForm
from mhnb.sharding.hlo_groups import parse_groups, parse_pairs

KNOWN = {
    "{{0,1},{2,3},{4,5},{6,7}}": ((0, 1), (2, 3), (4, 5), (6, 7)),
    "{{0,1,2,5}, {3,4,6,7}}": ((0, 1, 2, 5), (3, 4, 6, 7)),
    "{}": ((0, 1, 2, 3, 4, 5, 6, 7),),
    "[4,2]<=[8]": ((0, 1), (2, 3), (4, 5), (6, 7)),
    "[2,4]<=[4,2]T(1,0)": ((0, 2, 4, 6), (1, 3, 5, 7)),
    "[2,4]<=[2,2,2]T(1,0,2)": ((0, 1, 4, 5), (2, 3, 6, 7)),
    "mesh['axis_0'=4,'axis_1'=2] {'axis_0'}": ((0, 2, 4, 6), (1, 3, 5, 7)),
    "mesh['data'=4,'model'=2] {'model','data'}": ((0, 2, 4, 6, 1, 3, 5, 7),),
    "mesh['a'=4,'b'=1,'c'=2] {'a'}": ((0, 2, 4, 6), (1, 3, 5, 7)),
    "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}": ((0, 1), (2, 3), (4, 5), (6, 7)),
    "mesh['a'=4,'b'=2], device_ids=(0,2,4,6,1,3,5,7) {'b'}": ((0, 2), (4, 6), (1, 3), (5, 7)),
    "mesh['a'=4,'b'=2] {'a':(1)2}": ((0, 4), (1, 5), (2, 6), (3, 7)),
    "mesh['a'=4,'b'=2] {'a':(2)2,'b'}": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "mesh['a'=8] {}": tuple((one,) for one in range(8)),
}


@pytest.mark.parametrize(("text", "groups"), KNOWN.items(), ids=KNOWN.keys())
def test_known_spelling_is_parsed(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    """Each spelling has these groups, also with attributes after it."""
    assert parse_groups(text, 8) == groups
    assert parse_groups(f"{text}, use_global_device_ids=true, to_apply=%add", 8) == groups


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all",
        "{0,1,2}",
        "{{}}",
        "@mesh {'a'}",
        "V4[4,2]",
        "[4,2]",
        "[2,2,2]<=[8]",
        "[4,2]<=[4]",
        "[4,2]<=[4,2]T(0,2)",
        "mesh['a'=4,'b'=2] {'c'}",
        "mesh['a'=4], device_ids=(0,1) {'a'}",
        "mesh['a'=4,'b'=2], device_ids=(iota) {'a'}",
        "mesh['a'=4,'b'=2] {'a':(3)2}",
        "{{0,1},{1,2}}",
        "{{0,8}}",
    ],
)
def test_any_other_spelling_is_refused(text: str) -> None:
    """An unknown spelling is not guessed, and the error contains the text."""
    with pytest.raises(UnknownForm) as caught:
        parse_groups(text, 8)
    assert isinstance(caught.value, HloError)
    assert repr(text) in str(caught.value)
    assert caught.value.form == text


meshes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(sizes=meshes, data=st.data())
def test_spellings_of_the_same_groups_agree(sizes: list[int], data: st.DataObject) -> None:
    """For groups along some axes of a mesh the list, iota and mesh spellings all give the groups of numpy's transpose."""
    count, axes = prod(sizes), list(range(len(sizes)))
    chosen = data.draw(st.permutations(axes).flatmap(lambda order: st.integers(0, len(order)).map(lambda n: order[:n])))
    rest = [axis for axis in axes if axis not in chosen]
    size = prod(sizes[axis] for axis in chosen)
    expected = np.arange(count).reshape(sizes).transpose(*rest, *chosen).reshape(-1, size).tolist()
    groups = tuple(map(tuple, expected))
    order = ",".join(map(str, [*rest, *chosen]))
    dims = ",".join(map(str, sizes))
    names = ",".join(f"'x{axis}'={size}" for axis, size in enumerate(sizes))
    refs = ",".join(f"'x{axis}'" for axis in chosen)
    listed = "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"
    assert parse_groups(listed, count) == groups
    assert parse_groups(f"[{count // size},{size}]<=[{dims}]T({order})", count) == groups
    assert parse_groups(f"mesh[{names}] {{{refs}}}", count) == groups


@given(size=st.sampled_from([4, 8, 12, 16]), data=st.data())
def test_part_of_an_axis_is_parsed(size: int, data: st.DataObject) -> None:
    """`'a':(before)size` is the middle one of three axes into which a is split."""
    before = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    part = data.draw(st.sampled_from([n for n in range(1, size // before + 1) if size // before % n == 0]))
    expected = np.arange(2 * size).reshape(before, part, -1, 2).transpose(0, 2, 3, 1).reshape(-1, part)
    groups = parse_groups(f"mesh['a'={size},'b'=2] {{'a':({before}){part}}}", 2 * size)
    assert set(groups) == set(map(tuple, expected.tolist()))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_device_ids_of_a_transposed_mesh(order: tuple[int, ...]) -> None:
    """`device_ids=([dims]T(order))` places device numbers in the mesh as numpy's transpose does."""
    ids = np.arange(24).reshape(2, 3, 4).transpose(order).reshape(4, 6)
    text = f"mesh['a'=4,'b'=6], device_ids=([2,3,4]T({','.join(map(str, order))})) {{'a'}}"
    assert parse_groups(text, 24) == tuple(map(tuple, ids.T.tolist()))


def test_pairs_are_parsed() -> None:
    """Pairs keep their direction, and any other text is refused."""
    assert parse_pairs("{{0,2},{2,4},{4,0}}, metadata={}") == ((0, 2), (2, 4), (4, 0))
    assert parse_pairs("{}") == ()
    for text in ("", "{{0,1,2}}", "[2,2]<=[4]"):
        with pytest.raises(UnknownForm):
            parse_pairs(text)

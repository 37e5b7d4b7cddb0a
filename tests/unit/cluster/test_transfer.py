"""Pull, push and vars over two real ranks: equal, different and missing values, and the memory needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mhnb.cluster import requests, transfer
from mhnb.errors import InvalidRequest, NameMissing, ValueDiffers
from tests.support.piped_ranks import PipedRanks

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[PipedRanks]:
    """Start two ranks of two devices each, on a mesh (data 2, model 2); each test uses its own names."""
    with PipedRanks(2, devices=2) as started:
        yield started


@pytest.mark.parametrize(
    "axes", ["", "'data'", "'model'", "'data', 'model'", "None, 'data'", "None, ('data', 'model')"]
)
@pytest.mark.slow
def test_global_array_is_assembled(ranks: PipedRanks, axes: str) -> None:
    """Parts on one rank and copies on both ranks give the one array."""
    ranks.run(f"whole = put(np.arange(32, dtype='f4').reshape(4, 8), {axes})")
    np.testing.assert_array_equal(transfer.pull(ranks, ["whole"]), np.arange(32, dtype="f4").reshape(4, 8), strict=True)


def test_a_large_global_array_is_fetched_once_from_each_owner(ranks: PipedRanks) -> None:
    """Each rank sends its part once, though two of its devices hold it; the first rank also sends the structure around it."""
    ranks.run("large = put(np.arange(2**18, dtype='f4').reshape(512, 512), 'data')")
    before = len(ranks.sent_requests)
    transfer.pull(ranks, ["large"])
    fetched = [rank for rank, verb in ranks.sent_requests[before:] if verb == "fetch"]
    assert sorted(fetched) == [0, 0, 1]


def test_equal_local_values_are_pulled_as_one(ranks: PipedRanks) -> None:
    """A value that is equal on all ranks is pulled without choosing a rank."""
    ranks.run("alike = {'n': 3, 'a': np.arange(4), 'j': jnp.ones(2)}")
    value = transfer.pull(ranks, ["alike"])
    assert (value["n"], value["a"].tolist(), value["j"].tolist()) == (3, [0, 1, 2, 3], [1, 1])


@pytest.mark.parametrize(
    ("source", "each", "total"),
    [
        ("put(np.zeros((2**11, 2**12), 'f4'), 'data')", False, 2**25),
        ("put(np.zeros((2**11, 2**12), 'f4'), 'data')", True, 2**25),
        ("np.zeros(2**23, 'f4')", False, 2**25),
        ("np.zeros(2**23, 'f4')", True, 2**26),
        ("{'a': np.zeros(2**22), 'b': put(np.zeros(2**12, 'f4'))}", False, 2**25 + 2**14),
    ],
)
def test_a_large_pull_reports_its_bytes(ranks: PipedRanks, source: str, each: bool, total: int) -> None:  # noqa: FBT001
    """A pull reports after each chunk how many bytes have arrived, of how many, up to all of them."""
    ranks.run(f"reported = {source}")
    seen: list[tuple[int, int]] = []
    transfer.pull(ranks, ["reported"], each=each, on_progress=lambda *counts: seen.append(counts))
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    # The structure around the arrays is a few bytes.
    assert {counts[1] // 2**12 for counts in seen} == {total // 2**12}


def test_a_small_pull_reports_nothing(ranks: PipedRanks) -> None:
    """A value that comes with the first reply has no progress."""
    ranks.run("reported = np.arange(4)")
    seen: list[tuple[int, int]] = []
    transfer.pull(ranks, ["reported"], on_progress=lambda *counts: seen.append(counts))
    assert seen == []


def test_a_push_reports_its_bytes(ranks: PipedRanks) -> None:
    """A push reports the bytes for all ranks together."""
    seen: list[tuple[int, int]] = []
    transfer.push(ranks, {"pushed_large": np.zeros(2**22)}, on_progress=lambda *counts: seen.append(counts))
    assert [done // 2**24 for done, _ in seen] == [1, 2, 3, 4, 4, 4]
    assert seen[-1][0] == seen[-1][1]
    assert seen[0][1] // 2**12 == 2**26 // 2**12


@pytest.mark.parametrize(
    "source",
    [
        "{8, 0} if rank else {0, 8}",
        "dict(a=1, b=2) if rank else dict(b=2, a=1)",
        "['ab'] * 2 if rank else ['ab', ''.join(['a', 'b'])]",
        "np.asfortranarray(np.eye(3)) if rank else np.eye(3)",
        "dict(w=wa, b=ba) if rank else dict(b=ba, w=wa)",
    ],
)
def test_equal_values_with_different_pickles_are_equal(ranks: PipedRanks, source: str) -> None:
    """Order in a set or dict, shared references and memory order are not differences."""
    ranks.run(f"wa, ba = put(np.arange(4.), 'data'), put(np.arange(4.) + 4, 'data'); turned = {source}")
    value = transfer.pull(ranks, ["turned"])
    if isinstance(value, dict) and "w" in value:
        assert (value["w"].tolist(), value["b"].tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])


@pytest.mark.parametrize(
    ("source", "shown"),
    [("odd = {1: 'a', None: 2}", "{1: 'a', None: 2}"), ("odd = []; odd.append(odd)", "[[...]]")],
    ids=["keys of two kinds", "itself within"],
)
def test_container_that_is_not_a_pytree_is_pulled(ranks: PipedRanks, source: str, shown: str) -> None:
    """A pull does not flatten the container, so JAX's refusal to flatten it does not matter."""
    ranks.run(source)
    assert repr(transfer.pull(ranks, ["odd"])) == shown


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("rank", "0 on rank 0, 1 on rank 1"),
        ("np.arange(2) + rank", r"i64\[2\] \[0, 1\] on rank 0, i64\[2\] \[1, 2\] on rank 1"),
        ("jnp.arange(2) + rank", r"local i32\[2\] \[0, 1\] on rank 0, local i32\[2\] \[1, 2\] on rank 1"),
        ("{'step': rank, 'w': put(np.ones(4), 'model')}", r"dict of 2 items.*\(\['step'\]: 0 and 1\)"),
        ("[1.0, float('nan')][rank]", "1.0 on rank 0, nan on rank 1"),
        ("[0.0, -0.0][rank]", "0.0 on rank 0, -0.0 on rank 1"),
        ("np.arange(2**22) + rank", r"i64\[4194304\] on rank 0, another i64\[4194304\] on rank 1"),
    ],
)
def test_different_local_values_are_an_error_with_both_sides(ranks: PipedRanks, source: str, expected: str) -> None:
    """Different values are an error with each side's ranks and two ways to pull them."""
    ranks.run(f"uneven = {source}")
    with pytest.raises(ValueDiffers, match=f"^uneven differs between the ranks: .*{expected}") as caught:
        transfer.pull(ranks, ["uneven"])
    assert caught.value.parts["groups"] == ((0,), (1,))
    assert "Fix: %mhjax pull uneven --ranks 1 (one rank's value)\n  Or: %mhjax pull uneven --each" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "expected", "ways"),
    [
        (
            "np.zeros(4) if rank else put(np.ones(4), 'data')",
            r"global f32\[4\] on rank 0, f64\[4\] .* on rank 1",
            ["part --ranks 1"],
        ),
        ("{'step': rank, 'w': put(np.ones(4), 'data')}", r"\(\['step'\]: 0 and 1\)\. No rank holds all", []),
        (
            "{'step': np.ones(2) + rank, 'w': put(np.ones(4), 'data')}",
            r"\n  Fix: %mhjax pull part --each",
            ["part --each"],
        ),
    ],
)
def test_error_names_only_ways_that_work(ranks: PipedRanks, source: str, expected: str, ways: list[str]) -> None:
    """If a rank has only part of an array, a single rank or the list may fail, so the error names only ways that work."""
    ranks.run(f"part = {source}")
    with pytest.raises(ValueDiffers, match=f"^part differs between the ranks: .*{expected}") as caught:
        transfer.pull(ranks, ["part"])
    assert re.findall(r"%mhjax pull (\S+ --\S+(?: \d)?)", str(caught.value)) == ways
    for way in ways:
        transfer.pull(ranks, ["part"], **({"each": True} if "each" in way else {"ranks": [int(way[-1])]}))


@pytest.mark.slow
def test_ranks_with_the_whole_array_are_named() -> None:
    """With an array on ranks 0-1 and None on rank 2, the ranks of the array are named first, then rank 2."""
    with PipedRanks(3, devices=2) as three:
        three.run(
            """
            two = NamedSharding(Mesh(np.array(jax.devices()[:4]), ('a',)), P('a'))
            part = jax.make_array_from_callback((4,), two, lambda i: np.arange(4.)[i], dtype=np.float32)
            """
        )
        three.run("part = None", ranks=(2,))
        with pytest.raises(
            ValueDiffers, match=r"%mhjax pull part --ranks 0-1 \(from ranks 0-1\)\n  Or: %mhjax pull part --ranks 2 "
        ) as caught:
            transfer.pull(three, ["part"])
        assert "--each" not in str(caught.value)
        assert transfer.pull(three, ["part"], ranks=[0, 1]).tolist() == [0, 1, 2, 3]
        assert transfer.pull(three, ["part"], ranks=[2]) is None


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("jax.random.split(jax.random.key(7), 6)", "keys"),
        ("{'n': 1, 'params': {'k': jax.random.key(7)}}", "keys['params']['k']"),
    ],
)
def test_key_in_the_error_can_be_typed_as_shown(ranks: PipedRanks, source: str, key: str) -> None:
    """The command in the error works as it is written, also for a key in a tree."""
    ranks.run(f"keys = {source}")
    with pytest.raises(InvalidRequest) as caught:
        transfer.pull(ranks, ["keys"])
    found = re.search(r"run (raw = .*); then: %mhjax pull raw", str(caught.value))
    assert found is not None
    assert found[1] == f"raw = jax.random.key_data({key})"
    ranks.run(found[1])
    assert transfer.pull(ranks, ["raw"]).dtype == np.uint32


def test_path_of_a_key_is_that_of_the_given_ranks(ranks: PipedRanks) -> None:
    """The key's path in the error is correct for the ranks that are named with it."""
    ranks.run("mixed_keys = [jax.random.key(0)] if rank else jax.random.key(0)")
    for rank, key in enumerate(["mixed_keys", r"mixed_keys\[0\]"]):
        with pytest.raises(InvalidRequest, match=rf"key_data\({key}\)"):
            transfer.pull(ranks, ["mixed_keys"], ranks=[rank])


def test_path_of_a_hidden_key_is_not_invented(ranks: PipedRanks) -> None:
    """A key in an object that is not a pytree has no path, and the error does not invent one."""
    ranks.run("import types; boxed = types.SimpleNamespace(k=jax.random.key(0))")
    with pytest.raises(InvalidRequest, match=r"^boxed holds PRNG keys .* raw = jax\.random\.key_data\(key\)"):
        transfer.pull(ranks, ["boxed"])


def test_value_of_one_rank_can_be_pulled(ranks: PipedRanks) -> None:
    """With one rank given, its value is pulled, whatever the others have."""
    ranks.run("own = rank * 10")
    assert transfer.pull(ranks, ["own"], ranks=[1]) == 10


def test_each_returns_a_list_by_rank(ranks: PipedRanks) -> None:
    """With `each`, the result is a list by rank, including arrays."""
    ranks.run("own = [rank, np.arange(2) + rank]")
    first, second = transfer.pull(ranks, ["own"], each=True)
    assert (first[0], first[1].tolist(), second[0], second[1].tolist()) == (0, [0, 1], 1, [1, 2])


def test_name_missing_on_one_rank_is_an_error(ranks: PipedRanks) -> None:
    """A name that only some ranks have is an error with both sides."""
    ranks.run("partial_name = 1", ranks=(0,))
    ranks.run("partial_nome = 1", ranks=(1,))
    with pytest.raises(
        NameMissing, match=r"missing on rank 1, but exists on rank 0\. Similar names: partial_nome"
    ) as caught:
        transfer.pull(ranks, ["partial_name"])
    assert caught.value.parts["missing"] == (1,)


def test_replicas_with_different_values_are_an_error(ranks: PipedRanks) -> None:
    """A replicated array that was built from different values is an error, not the value of one rank."""
    ranks.run("copies = put(np.arange(4.) + rank)")
    with pytest.raises(ValueDiffers, match=r"hold different values: 0:0 0:1 ≠ 1:0 1:1"):
        transfer.pull(ranks, ["copies"])
    assert transfer.pull(ranks, ["copies"], ranks=[1]).tolist() == [1, 2, 3, 4]
    assert [value.tolist() for value in transfer.pull(ranks, ["copies"], each=True)] == [[0, 1, 2, 3], [1, 2, 3, 4]]


def test_different_global_shapes_are_an_error(ranks: PipedRanks) -> None:
    """Local parts of different sizes create different global arrays per rank; the error has both shapes."""
    ranks.run("by_rows = NamedSharding(mesh, P('data')); own = np.zeros(2 + 2 * rank)")
    ranks.run("skewed = jax.make_array_from_process_local_data(by_rows, own)")
    with pytest.raises(
        ValueDiffers, match=r"shape or dtype differs between the ranks: f32\[4\] on rank 0, f32\[8\] on rank 1"
    ):
        transfer.pull(ranks, ["skewed"])


def test_missing_part_of_an_array_is_an_error(ranks: PipedRanks) -> None:
    """If the given ranks lack a part, the error names the rank that has it."""
    ranks.run("spread = put(np.arange(8.), 'data')")
    with pytest.raises(InvalidRequest, match=r"spread f32\[8\] .* rank 1 does not hold \[0:4\], that is on rank 0"):
        transfer.pull(ranks, ["spread"], ranks=[1])


def test_each_returns_the_whole_global_array(ranks: PipedRanks) -> None:
    """With `each`, a global array is the same whole array for every rank."""
    ranks.run("spread = put(np.arange(8.), 'data')")
    first, second = transfer.pull(ranks, ["spread"], each=True)
    assert first is second
    assert first.tolist() == list(range(8))


def test_each_does_not_join_arrays_of_different_containers(ranks: PipedRanks) -> None:
    """If containers differ, parts of their global arrays are not joined by position."""
    ranks.run("mixed = {'n': rank, 'w': put(np.arange(8.), 'data')}")
    with pytest.raises(ValueDiffers, match="pull that variable"):
        transfer.pull(ranks, ["mixed"], each=True)


def test_an_array_on_one_ranks_devices_is_pulled(ranks: PipedRanks) -> None:
    """An array on one rank's devices is pulled from that rank, because the others have only a handle."""
    ranks.run(
        """
        small = Mesh(np.array(jax.devices()[2:]), ('a',))
        elsewhere = jax.make_array_from_callback(
            (4,), NamedSharding(small, P('a')), lambda i: np.arange(4., dtype='f4')[i], dtype=np.float32)
        """
    )
    assert transfer.pull(ranks, ["elsewhere"]).tolist() == [0, 1, 2, 3]


# -- push


@pytest.mark.parametrize(
    "value",
    [
        3,
        {"a": [1, None], "b": np.arange(6).reshape(2, 3)},
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 2)),
        np.arange(2**18),
        [np.arange(2**18), "x" * 2**18, np.ones(3)],
    ],
)
def test_pushed_value_is_pulled_unchanged(ranks: PipedRanks, value: Any) -> None:
    """A pushed value is bound on every rank, equal on all of them, and unchanged when pulled."""
    transfer.push(ranks, {"pushed": value})
    np.testing.assert_equal(transfer.pull(ranks, ["pushed"]), value)


def test_a_pushed_array_is_a_writable_host_value(ranks: PipedRanks) -> None:
    """A pushed array is a NumPy array on every rank, separate for each rank, and writable."""
    transfer.push(ranks, {"given": np.zeros(4)})
    assert ranks.run("given += rank; answer = [type(given).__name__, given.tolist()]") == [
        ["ndarray", [0, 0, 0, 0]],
        ["ndarray", [1, 1, 1, 1]],
    ]


def test_push_to_some_ranks_does_not_change_the_others(ranks: PipedRanks) -> None:
    """Ranks that are not given keep their value."""
    ranks.run("aimed = 'old'")
    transfer.push(ranks, {"aimed": "new"}, ranks=[1])
    assert ranks.run("answer = aimed") == ["old", "new"]


def test_value_that_cannot_be_pickled_sends_nothing(ranks: PipedRanks) -> None:
    """With one bad value in a push, no rank gets a request and no name is bound."""
    before = len(ranks.sent_requests)
    with pytest.raises(InvalidRequest, match=r"^bad cannot be pushed: .*generator.* Nothing was bound"):
        transfer.push(ranks, {"fine": 1, "bad": (_ for _ in ())})
    assert len(ranks.sent_requests) == before


def test_value_that_one_rank_cannot_load_is_bound_nowhere(ranks: PipedRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that one rank lacks stops the push on all ranks, and the error names rank and class."""
    import sys

    lacking_class = type("Lacking", (), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Lacking", lacking_class, raising=False)
    ranks.run("class Lacking: pass", ranks=(0,))
    ranks.run("unbound = 'old'")
    with pytest.raises(InvalidRequest, match=r"unbound cannot be pushed: on rank 1 it needs __main__\.Lacking"):
        transfer.push(ranks, {"unbound": lacking_class()})
    assert ranks.run("answer = unbound") == ["old", "old"]
    assert ranks.run(
        "from mhnb.rank.requests.handlers import _TRANSFER_STORES; answer = len(_TRANSFER_STORES[rank]._incoming)"
    ) == [0, 0]


@pytest.mark.parametrize("name", ["class", "a b", ""])
def test_a_name_that_cannot_be_bound_is_refused(ranks: PipedRanks, name: str) -> None:
    """A string that is not a variable name cannot be a target of a push."""
    with pytest.raises(InvalidRequest, match="push"):
        transfer.push(ranks, {name: 1})


# -- vars


def test_variables_show_where_ranks_differ(ranks: PipedRanks) -> None:
    """A global array is one row for all ranks; a differing number and a missing name show their rank."""
    ranks.run("shared_array, number = put(np.zeros((4, 4), 'f4'), 'data', 'model'), rank")
    ranks.run("lonely = 1", ranks=(1,))
    rows = {row.name: row for row in requests.list_variables(ranks)}
    assert (rows["shared_array"].kind, rows["shared_array"].spec) == ("global Array", "P('data', 'model')")
    assert rows["shared_array"].agrees
    assert rows["number"].differs == "int 1 on rank 1"
    assert rows["lonely"].differs == "missing on rank 0"


# -- memory

NBYTES = 300 * 2**20


def _peak_nbytes() -> int:
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found
    return int(found[1]) * 1024


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


_PEAK = """
import re
answer = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize("axes", ["'data'", "None, 'data'"])
@pytest.mark.slow
def test_a_pull_needs_little_more_than_the_value(ranks: PipedRanks, axes: str) -> None:
    """The notebook needs the array and a few chunks; the ranks need nothing more, because they send what they hold."""
    ranks.run(
        f"bulk = put(np.ones(({NBYTES} // 4096, 1024), 'f4'), {axes}); bulk.block_until_ready()\n"
        "open('/proc/self/clear_refs', 'w').write('5')"
    )
    peaks_before = ranks.run(_PEAK)
    _reset_peak()
    before = _peak_nbytes()
    value = transfer.pull(ranks, ["bulk"])
    assert value.nbytes == NBYTES
    assert _peak_nbytes() - before < 1.5 * NBYTES
    assert all(after - was < 0.2 * NBYTES for was, after in zip(peaks_before, ranks.run(_PEAK), strict=True))
    ranks.run("del bulk")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.slow
def test_a_push_needs_little_more_than_the_value(ranks: PipedRanks) -> None:
    """Each rank needs the array and a few chunks; the notebook needs nothing more than the value it has."""
    value = np.ones(NBYTES // 8)
    ranks.run("open('/proc/self/clear_refs', 'w').write('5')")
    peaks_before = ranks.run(_PEAK)
    _reset_peak()
    before = _peak_nbytes()
    transfer.push(ranks, {"bulk": value})
    assert _peak_nbytes() - before < 0.5 * NBYTES
    assert all(after - was < 1.5 * NBYTES for was, after in zip(peaks_before, ranks.run(_PEAK), strict=True))
    ranks.run("del bulk")

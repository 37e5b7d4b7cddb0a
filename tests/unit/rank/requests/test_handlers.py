"""The request handlers in one real process with eight fake devices: what they read and refuse; nothing is launched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mhnb.cluster import requests, transfer
from mhnb.errors import ClusterError, InvalidRequest, ValueDiffers
from mhnb.sharding.layout import decode_tree
from tests.support.piped_ranks import PipedRanks

_ANSI = re.compile(r"\x1b\[[0-9;]*m")

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def rank() -> Iterator[PipedRanks]:
    """One process with eight CPU devices; each test uses its own names."""
    with PipedRanks(1, devices=8) as ranks:
        yield ranks


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("3", 3),
        ("'text'", "text"),
        ("None", None),
        ("{'a': [1, 2.5, None], 'b': (True, b'x')}", {"a": [1, 2.5, None], "b": (True, b"x")}),
        ("{'a', 'b'}", {"a", "b"}),
        ("2**200", 2**200),
        ("np.float32(3)", np.float32(3)),
    ],
)
def test_host_values_keep_value_and_type(rank: PipedRanks, source: str, expected: Any) -> None:
    """A value without arrays arrives equal and of its own type."""
    rank.run(f"plain = {source}")
    value = transfer.pull(rank, ["plain"])
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    "axes", ["", "'data'", "'data', 'model'", "None, 'data'", "('data', 'model')", "None, 'model'"]
)
def test_array_is_assembled_from_its_shards(rank: PipedRanks, axes: str) -> None:
    """With any sharding, the value that arrives equals the array, and is writable."""
    rank.run(f"sharded = put(np.arange(64 * 8, dtype='i4').reshape(64, 8), {axes})")
    value = transfer.pull(rank, ["sharded"])
    np.testing.assert_array_equal(value, np.arange(64 * 8, dtype="i4").reshape(64, 8), strict=True)
    assert value.flags.writeable


@pytest.mark.parametrize(
    "dtype", ["bool", "int4", "uint8", "int32", "float16", "bfloat16", "float8_e4m3fn", "float32", "complex64"]
)
def test_each_jax_dtype_arrives(rank: PipedRanks, dtype: str) -> None:
    """Arrays of every JAX dtype arrive with that dtype, including those of ml_dtypes."""
    rank.run(f"typed = jnp.array([0, 1, 1], dtype='{dtype}')")
    value = transfer.pull(rank, ["typed"])
    assert value.dtype.name == dtype
    assert value.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "source",
    [
        "np.arange(12.).reshape(3, 4).T",
        "np.asfortranarray(np.arange(12.).reshape(3, 4))",
        "np.arange(24)[::2]",
        "np.arange(3, dtype='>i4')",
        "np.array(['a', 'bcd'])",
        "np.array('2020-01-01', dtype='M8[D]')",
        "np.array([(1, 2.)], dtype=[('a', 'i4'), ('b', 'f8')])",
        "np.array([1, 'x', None], dtype=object)",
        "np.ma.masked_array([1, 2], [True, False])",
        "np.zeros((0, 3))",
        "np.float64(3) + np.zeros(())",
        "jnp.zeros((0, 3))",
        "jnp.float32(3)",
    ],
)
def test_each_kind_of_array_arrives(rank: PipedRanks, source: str) -> None:
    """Column-major, strided, foreign-endian, text, date, record, object, masked, empty and 0-d arrays arrive unchanged."""
    rank.run(f"odd = {source}")
    value = transfer.pull(rank, ["odd"])
    (shown,) = rank.run("answer = [repr(np.asanyarray(odd)), str(odd.dtype), list(odd.shape)]")
    assert [repr(np.asanyarray(value)), str(value.dtype), list(value.shape)] == shown


def test_containers_keep_their_arrays_in_place(rank: PipedRanks) -> None:
    """Arrays in a pytree arrive in their places, and an array that appears twice arrives as one array."""
    rank.run("w = put(np.arange(8.), 'data'); tree = {'w': w, 'again': [w], 'n': (1, np.ones(2))}")
    value = transfer.pull(rank, ["tree"])
    np.testing.assert_array_equal(value["w"], np.arange(8))
    assert value["again"][0] is value["w"]
    np.testing.assert_array_equal(value["n"][1], [1, 1])


def test_several_names_return_a_tuple(rank: PipedRanks) -> None:
    """One name returns its value, and several names a tuple in the requested order."""
    rank.run("first, second = 1, 2")
    assert transfer.pull(rank, ["second", "first"]) == (2, 1)


def test_large_value_is_released_after_the_pull(rank: PipedRanks) -> None:
    """A rank holds a large value in pieces during the pull only; a small value comes with the first answer."""
    rank.run("large, small = np.zeros(2**20), np.zeros(8)")
    rank.take_requested_handlers()
    transfer.pull(rank, ["small"])
    assert rank.take_requested_handlers() == ["describe"]
    transfer.pull(rank, ["large"])
    assert rank.take_requested_handlers() == ["describe", "fetch", "fetch", "release"]
    rank.run("from mhnb.rank.requests.handlers import _TRANSFER_STORES; answer = len(_TRANSFER_STORES[0]._outgoing)")
    assert rank.run("answer = len(_TRANSFER_STORES[0]._outgoing)") == [0]


def test_abandoned_transfer_is_dropped(rank: PipedRanks) -> None:
    """A transfer left on a rank by a notebook that disconnected ends with the next transfer."""
    rank.run("left = np.zeros(2**20); from mhnb.rank.requests.handlers import _TRANSFER_STORES")
    arguments = {"transfer": "gone", "live": ["gone"], "names": ["left"], "digest_local": False}
    assert rank.ask(0, "describe", arguments).result(60).ok
    assert rank.run("answer = list(_TRANSFER_STORES[0]._outgoing)") == [["gone"]]
    transfer.pull(rank, ["left"])
    assert rank.run("answer = list(_TRANSFER_STORES[0]._outgoing)") == [[]]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("jax.random.key(0)", r"holds PRNG keys \(key<fry>\[\]\).*jax\.random\.key_data"),
        ("{'k': [jax.random.key(0)]}", "holds PRNG keys"),
        ("(i for i in [])", "cannot pickle 'generator' object"),
        ("lambda: 0", "cannot be sent: .*lambda"),
        ("type('Made', (), {})()", "cannot be sent: .*Made"),
    ],
)
def test_unsendable_value_is_an_error_with_the_reason(rank: PipedRanks, source: str, expected: str) -> None:
    """A value that cannot be sent is an error with the reason and the next step."""
    rank.run(f"odd = {source}")
    with pytest.raises(InvalidRequest, match=f"^odd.*{expected}"):
        transfer.pull(rank, ["odd"])


def test_donated_array_is_an_error(rank: PipedRanks) -> None:
    """An array that was donated to a jitted function is an error that mentions donation."""
    rank.run("given = jnp.ones(4); taken = jax.jit(lambda a: a + 1, donate_argnums=0)(given)")
    with pytest.raises(InvalidRequest, match=r"holds an array f32\[4\] that has been deleted, most likely donated"):
        transfer.pull(rank, ["given"])


def test_leaked_tracer_is_an_error(rank: PipedRanks) -> None:
    """A tracer that left its function is an error that expected so, and does not break the list of variables."""
    rank.run(
        """
        def leak(a):
            global leaked
            leaked = a
            return a
        _ = jax.jit(leak)(1.)
        """
    )
    with pytest.raises(InvalidRequest, match="holds a tracer"):
        transfer.pull(rank, ["leaked"])
    assert {row.name: row.facts.type for row in requests.list_variables(rank)}["leaked"] == "Tracer"
    rank.run("del leaked")


def test_class_defined_in_a_cell_is_named(rank: PipedRanks) -> None:
    """A value whose class exists only on the ranks is an error that names the class and the fix."""
    rank.run("class OnRanks: pass\nthing = OnRanks()")
    with pytest.raises(
        InvalidRequest, match=r"thing needs OnRanks, which was defined in a cell on the ranks.* Define OnRanks here"
    ):
        transfer.pull(rank, ["thing"])


def test_replicas_on_one_rank_are_compared(rank: PipedRanks) -> None:
    """Devices of one rank whose replicas differ are an error."""
    rank.run(
        """
        parts = [jax.device_put(np.full(4, float(i)), d) for i, d in enumerate(jax.devices()[:2])]
        pair = Mesh(np.array(jax.devices()[:2]), ('a',))
        unequal = jax.make_array_from_single_device_arrays((4,), NamedSharding(pair, P()), parts)
        """
    )
    with pytest.raises(
        ValueDiffers, match=r"unequal f32\[4\]: .* replicas of \[0:4\] hold different values: 0:0 ≠ 0:1"
    ):
        transfer.pull(rank, ["unequal"])


def test_pulled_array_can_still_be_donated(rank: PipedRanks) -> None:
    """After a pull nothing holds the array's memory: a donating function reuses it in place."""
    rank.run("reused = jnp.arange(2**20, dtype='f4'); reused.block_until_ready()")
    transfer.pull(rank, ["reused"])
    (same,) = rank.run(
        """
        before = reused.unsafe_buffer_pointer()
        after = jax.jit(lambda a: a * 2, donate_argnums=0)(reused)
        answer = after.unsafe_buffer_pointer() == before
        """
    )
    assert same


def test_pulled_array_does_not_change_later(rank: PipedRanks) -> None:
    """The notebook has a copy: later changes to the array on the rank do not show in it."""
    rank.run("mutable = np.zeros(4)")
    value = transfer.pull(rank, ["mutable"])
    rank.run("mutable += 1")
    assert value.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("names", [[], ["a b"], ["x.y"], ["x[0]"], [""]])
def test_invalid_name_is_refused_without_a_request(rank: PipedRanks, names: list[str]) -> None:
    """A pull accepts only names of variables; anything else is an invalid request, and no rank receives it."""
    rank.take_requested_handlers()
    with pytest.raises(InvalidRequest):
        transfer.pull(rank, names)
    assert rank.take_requested_handlers() == []


def test_unknown_rank_is_refused(rank: PipedRanks) -> None:
    """A rank that does not exist is an invalid request."""
    with pytest.raises(InvalidRequest, match="unknown rank 3"):
        transfer.pull(rank, ["x"], ranks=[3])


def test_failed_request_is_reported(rank: PipedRanks) -> None:
    """A request that a rank could not answer is an error with the rank, the request and the rank's traceback."""
    answer = rank.ask(0, "no_such_verb", {}).result(60)
    assert not answer.ok
    assert answer.value["ename"] == "KeyError"
    with pytest.raises(ClusterError, match="rank 0 could not answer 'complete'") as caught:
        requests.complete(rank, None, 0)  # type: ignore[arg-type]
    assert "Traceback" in caught.value.parts["traceback"]


# -- names and their descriptions


def rows(rank: PipedRanks) -> dict[str, Any]:
    """Return the variables by name."""
    return {row.name: row for row in requests.list_variables(rank)}


def test_array_is_described_by_its_sharding(rank: PipedRanks) -> None:
    """The row of a sharded array has shape, dtype, spec, mesh and bytes per device."""
    rank.run("shown = put(np.zeros((16, 4), 'f4'), 'data', None)")
    facts = rows(rank)["shown"].facts
    assert (facts.place, facts.shape, facts.dtype, facts.spec) == ("local", (16, 4), "float32", "P('data', None)")
    assert facts.mesh == (("data", 4), ("model", 2))
    assert facts.nbytes_per_device == 4 * 4 * 4


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("3", "int 3"),
        ("10**99999", "int a number of 332190 bits"),
        ("'a' * 999", "str '" + "a" * 59 + "…"),
        ("[1, 2]", "list 2 items"),
        ("{'a': jnp.ones(3), 'b': 1}", "dict 2 items, 1 array"),
        ("np.zeros((2, 3))", "ndarray"),
        ("jnp.zeros(3)", "local Array"),
        ("mesh", "Mesh data 4, model 2"),
        ("object()", "object"),
    ],
)
@pytest.mark.slow
def test_other_values_are_described_briefly(rank: PipedRanks, source: str, kind: str) -> None:
    """Numbers and text are shown up to a limit, containers by their size, and arrays never by their content."""
    rank.run(f"described = {source}")
    assert rows(rank)["described"].kind == kind


def test_code_and_hidden_names_are_not_listed(rank: PipedRanks) -> None:
    """Modules, functions, classes, IPython's own names and names with an underscore are not variables."""
    rank.run("def fun(): pass\njitted = jax.jit(fun)\nclass Cls: pass\n_private = 1")
    assert not {"np", "fun", "jitted", "Cls", "_private", "In", "Out", "get_ipython", "exit"} & set(rows(rank))


def test_names_include_functions_and_modules(rank: PipedRanks) -> None:
    """The set of names includes functions and modules, but not what IPython added."""
    rank.run("def fun(): pass")
    found = requests.list_names(rank)
    assert {"fun", "np", "mesh"} <= found
    assert not {"In", "Out", "get_ipython", "_"} & found


def test_broken_value_does_not_hide_the_others(rank: PipedRanks) -> None:
    """A pytree whose flattening raises is listed with its error."""
    rank.run(
        """
        class Broken: pass
        def flatten(_): raise RuntimeError('no')
        jax.tree_util.register_pytree_node(Broken, flatten, lambda *_: None)
        broken = Broken()
        """
    )
    assert "cannot be described: RuntimeError: no" in rows(rank)["broken"].kind
    rank.run("del broken")


_DEPTH = """
def measure(depth=0):
    try:
        return measure(depth + 1)
    except RecursionError:
        return depth
answer = measure()
"""
_CYCLE = "bad = {'name': 'root', 'children': []}; bad['children'].append({'name': 'leaf', 'parent': bad})"
_DEEP = "bad = []\nfor _ in range(10_000): bad = [bad, 1]"
_SHARED = "bad = [1]\nfor _ in range(40): bad = [bad, bad]"
_UNSORTABLE = "bad = [[[{1: 2, 'a': 3}]]]"
_NODE = """
class Node: pass
def flatten(node): {body}
jax.tree_util.register_pytree_node(Node, flatten, lambda *_: None)
bad = [[Node()]]
"""
_ENDLESS = _NODE.format(body="return (iter(int, 1), None)")
_RENEWED = _NODE.format(body="return ((Node(), 1), None)")
_RAISING = _NODE.format(body="raise LookupError('no')")


@pytest.mark.parametrize("source", [_CYCLE, _DEEP, _SHARED, _UNSORTABLE, _ENDLESS, _RENEWED, _RAISING])
@pytest.mark.slow
def test_value_that_cannot_be_flattened_leaves_the_recursion_limit(rank: PipedRanks, source: str) -> None:
    """Vars, check, pull, memory, layout and collectives never hand JAX a value in which its flattening fails."""
    rank.run(f"{source}\ndef f(x): return x")
    before = rank.run(_DEPTH)
    assert rows(rank)["bad"].facts.nbytes_per_device is None
    (row,) = requests.check_values(rank, ["bad"])
    assert "it cannot be flattened: " in row.text
    assert (
        rank.ask(0, "layout", {"expression": "bad"})
        .result(60)
        .value["text"]
        .startswith("layout: the value cannot be flattened")
    )
    assert rank.ask(0, "collectives", {"call": "f(bad)"}).result(60).value["ename"]
    assert rank.ask(0, "memory", {}).result(60).ok
    rank.ask(0, "describe", {"transfer": "t", "live": [], "names": ["bad"], "digest_local": False}).result(60)
    assert rank.run(_DEPTH) == before
    rank.run("del bad")


@pytest.mark.parametrize(
    "body",
    [
        "__class__ = property(lambda self: 1 / 0)",
        "__class__ = property(lambda self: jax.Array)",
        "def __getattribute__(self, name): raise LookupError(name)",
        "def __reduce__(self): 1 / 0",
        (
            "pass\nclass Meta(type): __name__ = property(lambda cls: 1 / 0)\n"
            "class Bad(metaclass=Meta):\n    def __reduce__(self): 1 / 0"
        ),
    ],
)
def test_bad_value_costs_its_own_row(rank: PipedRanks, body: str) -> None:
    """Vars, check, layout and memory describe the other values beside one whose class raises or lies."""
    rank.run(f"class Bad:\n    {body}\nbad = Bad(); beside = 3; tree = [bad, put(np.zeros((8, 4)), 'data', None)]")
    assert {"bad", "beside"} <= rows(rank).keys()
    assert [row.same for row in requests.check_values(rank, ["tree"])] == [None, True]
    layout = rank.ask(0, "layout", {"expression": "tree"}).result(60).value
    assert [row.path for row in decode_tree(layout["tree"]).rows] == ["[0]", "[1]"]
    assert rank.ask(0, "memory", {}).result(60).ok
    rank.run("del bad, tree")


_REQUESTS: dict[str, dict[str, Any]] = {
    "check": {"names": ["bad"]},
    "collectives": {"call": "f(bad)"},
    "complete": {"text": "bad.", "cursor": 4},
    "describe": {"transfer": "t", "live": [], "names": ["bad"], "digest_local": False},
    "inspect": {"name": "bad.x", "detail": 1},
    "layout": {"expression": "bad"},
    "memory": {},
    "vars": {},
}
_ANYTHING = """
class Bad:
    __slots__ = ()
    def __dir__(self): react()
    def __getattr__(self, name): react()
    def __reduce_ex__(self, protocol): react()
    def __repr__(self): react()
def flatten(bad): react()
jax.tree_util.register_pytree_node(Bad, flatten, lambda *_: None)
bad = Bad()
def f(x): return x
"""


@pytest.mark.parametrize("reaction", ["raise SystemExit(3)", "raise KeyboardInterrupt", "raise GeneratorExit"])
@pytest.mark.parametrize("handler", _REQUESTS)
def test_request_is_answered_whatever_a_value_raises(rank: PipedRanks, handler: str, reaction: str) -> None:
    """An exit, an interrupt or another BaseException out of a value's code becomes a reply."""
    rank.run(f"def react(): {reaction}\n{_ANYTHING}")
    rank.ask(0, handler, _REQUESTS[handler]).result(60)
    rank.run("del bad")


@pytest.mark.parametrize("handler", sorted(_REQUESTS.keys() - {"inspect"}))
def test_interrupted_request_is_answered(rank: PipedRanks, handler: str) -> None:
    """A signal ends the endless code of a value, and the rank goes on. IPython itself ends a completion then, with no match."""
    endless = "    import signal\n    signal.raise_signal(signal.SIGINT)\n    while True: pass"
    rank.run(f"def react():\n{endless}\n{_ANYTHING}")
    answer = rank.ask(0, handler, _REQUESTS[handler]).result(60)
    assert answer.value["matches"] == [] if answer.ok else answer.value["ename"] == "KeyboardInterrupt"
    rank.run("del bad")


def test_exit_costs_its_own_row(rank: PipedRanks) -> None:
    """A value whose flattening exits is listed with that, beside the others."""
    rank.run(f"def react(): raise SystemExit(3)\n{_ANYTHING}beside = 3")
    assert "cannot be described: SystemExit: 3" in rows(rank)["bad"].kind
    assert "beside" in rows(rank)
    (row,) = requests.check_values(rank, ["bad"])
    assert "it cannot be flattened: SystemExit: 3" in row.text
    rank.run("del bad")


def test_key_that_is_not_a_name_is_left_out(rank: PipedRanks) -> None:
    """Whatever a cell stores in its globals, the names, the variables, the memory and a missing name's advice are answered."""
    rank.run("globals()[5] = 1; globals()[(1, 2)] = 2; beside = 3")
    assert "beside" in rows(rank)
    assert "beside" in requests.list_names(rank)
    assert rank.ask(0, "memory", {}).result(60).ok
    assert "beside" in rank.ask(0, "layout", {"expression": "besid"}).result(60).value["text"]
    assert requests.complete(rank, "besid", 5).matches == ("beside",)
    rank.run("del globals()[5], globals()[(1, 2)]")


def test_completion_uses_the_ranks_names(rank: PipedRanks) -> None:
    """Names, attributes and keys are completed, with the range that they replace."""
    rank.run("completable = {'alpha': 1}; array = jnp.ones(3)")
    assert requests.complete(rank, "completab", 9) == requests.Completion(("completable",), 0, 9)
    assert "alpha" in requests.complete(rank, "completable['", 13).matches
    assert ".sharding" in requests.complete(rank, "array.sha", 9).matches


def test_completion_accepts_a_cursor_past_the_end(rank: PipedRanks) -> None:
    """A cursor past the end of the text counts as its end."""
    assert requests.complete(rank, "zzz", 99).matches == ()


def test_requests_launch_nothing(rank: PipedRanks) -> None:
    """Pull, vars, completion and `?` on arrays compile and run no program, whatever text is before the cursor."""
    rank.run("still = put(np.arange(16.).reshape(4, 4), 'data', 'model'); tree = {'w': still}; n0 = len(programs)")
    transfer.pull(rank, ["still", "tree"])
    requests.list_variables(rank)
    for text in ("still.T.sh", "(still + 1).sh", "still[0].sh", "tree['w'].T.sh", "still.at[0].set(1).sh", "still.T."):
        requests.complete(rank, text, len(text))
    for name in ("still", "tree", "still.T", "still.T.shape", "still.sum", "still.at"):
        requests.inspect(rank, name)
    assert rank.run("answer = programs[n0:]") == [[]]


def test_launch_is_recorded_in_the_list(rank: PipedRanks) -> None:
    """The list of programs that the last test reads grows when a program is launched."""
    (grown,) = rank.run("n0 = len(programs); jax.jit(lambda a: a * 3 - 1)(jnp.ones(5)); answer = len(programs) - n0")
    assert grown > 0


def test_inspected_array_is_described_by_its_sharding(rank: PipedRanks) -> None:
    """`x?` on an array shows shape, spec, mesh and memory."""
    rank.run("asked = put(np.zeros((8, 4), 'f4'), 'data', 'model')")
    bundle = requests.inspect(rank, "asked")
    assert bundle is not None
    assert bundle["text/plain"].splitlines() == [
        "Type:     jax.Array, local",
        "Value:    f32[8,4]",
        "Sharding: P('data', 'model') on mesh (data 4, model 2)",
        "Memory:   16 B per device",
    ]
    detailed = requests.inspect(rank, "asked", detail=1)
    assert detailed is not None
    assert "\nDocstring:\nArray base class for JAX\n" in detailed["text/plain"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{'w': put(np.zeros((8, 4), 'f4'), 'data'), 'n': [1, 'two', len]}",
            "{'w': f32[8,4] P('data'), 'n': [1, 'two', <builtin",
        ),
        ("(np.arange(2), {3}, frozenset(), set(), ())", "(i64[2] [0, 1], {3}, frozenset(), set(), ())"),
        ("list(range(20))", "[0, 1, 2, 3, 4, 5, 6, 7, …]"),
        ("[[[[[5]]]]]", "[[[…]]]"),
        ("np.arange(3)", "i64[3] [0, 1, 2]"),
        ("mesh", "Mesh('data': 4, 'model': 2"),
        ("P('data')", "('data',)"),
        ("np", "<module 'numpy'"),
        ("jax.random.key(0)", "Value:  key<fry>[]"),
        ("__import__('types').SimpleNamespace()", ""),
    ],
)
def test_inspected_value_has_a_text_from_metadata(rank: PipedRanks, source: str, expected: str) -> None:
    """`x?` shows containers with arrays as shape and spec, and no text that only a class's own code could give."""
    rank.run(f"described = {source}")
    bundle = requests.inspect(rank, "described")
    assert bundle is not None
    text = _ANSI.sub("", bundle["text/plain"])
    assert expected in text
    assert ("String form:" in text) == (bool(expected) and "key" not in expected)


def test_inspected_attribute_that_is_an_array_is_described_as_one(rank: PipedRanks) -> None:
    """`state.w?` describes the array in an attribute, unless a property would have to compute it."""
    rank.run(
        "class State:\n"
        "    def __init__(self): self.w = put(np.zeros((8, 4), 'f4'), 'data')\n"
        "    @property\n"
        "    def computed(self): raise SystemExit\n"
        "state = State()"
    )
    bundle, computed = requests.inspect(rank, "state.w"), requests.inspect(rank, "state.computed")
    assert bundle is not None
    assert bundle["text/plain"].startswith("Type:     jax.Array, local\nValue:    f32[8,4]\nSharding: P('data')")
    assert computed is not None
    assert "property" in computed["text/plain"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("asked.sum", "axis"), ("asked.T", "property, of jax.Array"), ("asked.sharding", "The sharding for the array.")],
)
def test_array_attribute_is_inspected_on_its_class(rank: PipedRanks, name: str, expected: str) -> None:
    """`x.sum?` describes the attribute without reading it from the array."""
    rank.run("asked = put(np.zeros((8, 4), 'f4'), 'data', 'model')")
    bundle = requests.inspect(rank, name)
    assert bundle is not None
    assert "of jax.Array" in bundle["text/plain"]
    assert expected in bundle["text/plain"]


def test_source_of_an_array_attribute_is_shown(rank: PipedRanks) -> None:
    """`x.sum??` shows the source and its file."""
    rank.run("asked = put(np.zeros((8, 4), 'f4'), 'data', 'model')")
    bundle = requests.inspect(rank, "asked.sum", detail=1)
    assert bundle is not None
    assert "return reductions.sum(" in bundle["text/plain"]
    assert "\n\nFile: " in bundle["text/plain"]


def test_code_is_inspected_by_ipython(rank: PipedRanks) -> None:
    """`f?` shows signature and docstring; with detail, the source."""
    rank.run('def explained(a, b=2):\n    """What it does."""\n    return a')
    bundle, detailed = requests.inspect(rank, "explained"), requests.inspect(rank, "explained", detail=1)
    assert bundle is not None
    assert detailed is not None
    assert "What it does." in bundle["text/plain"]
    assert "return" in detailed["text/plain"]


def test_inspection_does_not_print_a_container(rank: PipedRanks) -> None:
    """`d?` on a container of arrays does not print the container."""
    rank.run("class Loud(dict):\n    def __str__(self): raise SystemExit\n    __repr__ = __str__\nloud = Loud(a=1)")
    bundle = requests.inspect(rank, "loud")
    assert bundle is not None
    assert "Loud" in bundle["text/plain"]


@pytest.mark.parametrize("name", ["nothing_here", "nothing.here", "np.nothing"])
def test_inspection_of_an_unknown_name_finds_nothing(rank: PipedRanks, name: str) -> None:
    """A name that does not exist has no description."""
    assert requests.inspect(rank, name) is None

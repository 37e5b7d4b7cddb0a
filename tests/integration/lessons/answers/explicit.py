"""Answers of the lesson explicit."""

from tests.integration.lessons.book import Answer

_ADD = "%%mhjax\ndef add(x, y):\n    return {}\nmhnb.teach.check('add_typed', add)"
_DOT = "%%mhjax\ndef dot(u, v):\n    return {}\nmhnb.teach.check('dot_typed', dot)"

ANSWERS = {
    "add_typed": Answer(
        [
            (
                _ADD.format("jax.reshard(x, P('hosts', None)) + jax.reshard(y, P('hosts', None))"),
                "expected rows sharded over hosts",
            ),
            (
                _ADD.format("jax.reshard(x, P()) + jax.reshard(y, P())"),
                "Every device holds the whole result",
            ),
            (
                _ADD.format("jax.reshard(jax.reshard(x, P()) + jax.reshard(y, P()), P('hosts', 'inside'))"),
                "all-gather, expected none",
            ),
            (
                _ADD.format("jax.reshard(x, P('inside', 'hosts')) + jax.reshard(y, P('hosts', 'inside'))"),
                "ShardingTypeError",
            ),
            (_ADD.format("jax.reshard(x + x, P('hosts', 'inside'))"), "the result on device"),
            (_ADD.format("x + y"), "the result is float32[8@hosts,8], expected rows sharded over hosts"),
        ],
        also_right=[_ADD.format("jax.reshard(x + y, P('hosts', 'inside'))")],
    ),
    "dot_typed": Answer(
        [
            (_DOT.format("u @ v"), "ShardingTypeError"),
            (_DOT.format("jnp.dot(u, v, out_sharding=P('hosts', None))"), "expected rows sharded over hosts"),
            (
                _DOT.format("jnp.dot(jax.reshard(u, P('hosts', None)), jax.reshard(v, P(None, 'inside')))"),
                "expected",
            ),
            (
                _DOT.format("jnp.dot(jax.reshard(u, P()), jax.reshard(v, P()), out_sharding=P('hosts', 'inside'))"),
                "all-gather, expected none",
            ),
        ],
    ),
}

SAID = {
    ("explicit", "setup"): ["Explicit", "Explicit"],
    ("explicit", "types"): ["float32[8@hosts,1] and float32[1,6@inside]"],
    ("explicit", "reveal-type_of_sum"): ["it is 'float32[8@hosts,6@inside]'"],
    ("explicit", "trace"): ["while tracing: float32[8@hosts]", "after: float32[8@hosts]"],
    ("explicit", "trace-collectives"): ["[('all-reduce', ('inside',))]"],
    ("explicit", "clash"): ["ShardingTypeError"],
    ("explicit", "auto"): ["float32[8,8] the result has", "[('all-to-all', 48)]"],
    ("explicit", "constraint"): ["the result has P(None, 'hosts')"],
    ("explicit", "contract"): ["ShardingTypeError", "ambiguous"],
    ("explicit", "out"): ["float32[8@hosts,6]", "[('all-reduce', ('inside',))]"],
    ("explicit", "unreduced"): ["float32[8@hosts,6]{U:inside} [6.0, 30.0]", "float32[8@hosts,6] [36.0, 36.0]"],
    ("explicit", "index"): ["float32[4@inside]"],
    ("explicit", "within"): ["float32[8@hosts,8@inside]"],
    ("explicit", "manual"): [
        "inside: float32[2,3]{V:(hosts,inside)}",
        "outside: float32[8@hosts]",
        "[('all-reduce', ('inside',))]",
    ],
    ("explicit", "jit"): ["(8, 8) float32[8@hosts,8]"],
    ("explicit", "reshard"): ["float32[8@hosts,8]", "[('all-to-all', 48)]"],
}

"""Answers of the lesson four_ways."""

from tests.integration.lessons.book import Answer

_WAYS = "%%mhjax\nmhnb.teach.check('name_ways', {})"
_ALL = "dict.fromkeys(('q', 'k', 'v', 'out', 'gate', 'up', 'down'), {})"
_FSDP = f"%%mhjax\nspecs = {_ALL} | {{}}\nmhnb.teach.check('fsdp_specs', specs)"
_TP = f"%%mhjax\nspecs = {_ALL} | {{}}\nmhnb.teach.check('tp_specs', specs)"
_MIXED = f"%%mhjax\nspecs = {_ALL} | {{}}\nmhnb.teach.check('fsdp_tp_specs', specs)"
_FORWARD = "%%mhjax\ndef forward(block, params, x):\n    {}\nmhnb.teach.check('place_constraint', forward)"
_PLACED = "return block(params, jax.lax.with_sharding_constraint(x, NamedSharding(mesh, {})))"

ANSWERS = {
    "name_ways": Answer(
        [
            (_WAYS.format("{'A': 'DP', 'B': 'FSDP', 'C': 'TP', 'D': 'FSDP with TP'}"), "A is 'DP'"),
            (
                _WAYS.format("{'A': 'TP', 'B': 'FSDP with TP', 'C': 'DP', 'D': 'FSDP'}"),
                "no activation is ever added up",
            ),
            (_WAYS.format("{'A': 'TP', 'B': 'FSDP', 'C': 'DP', 'D': 'ZeRO'}"), "D is 'ZeRO', expected one of DP, FSDP"),
            (_WAYS.format("['TP', 'FSDP', 'DP', 'FSDP with TP']"), "expected a dict with the keys A, B, C, D"),
        ],
    ),
    "fsdp_specs": Answer(
        [
            (_FSDP.format("P(('data', 'model'))", "{}"), "does not fit out, float32[2, 4, 8, 64]"),
            (
                _FSDP.format("P('data')", "{'out': P(None, 'data')}"),
                "a device holds 59392 bytes of the parameters, expected at most 29696",
            ),
            (
                _FSDP.format("P('data', 'model')", "{'out': P('model', 'data')}"),
                "bytes, expected at most 29696",
            ),
            (_FSDP.format("P(('data', 'model'))", "{'out': None}"), "the spec of out is a NoneType"),
            ("%%mhjax\nmhnb.teach.check('fsdp_specs', {'q': P('data')})", "the specs lack k, v, out, gate, up, down"),
        ],
    ),
    "tp_specs": Answer(
        [
            (_TP.format("P()", "{}"), "a device holds 237568 bytes of the parameters, expected at most 118784"),
            (
                _TP.format("P(None, 'model')", "{'k': P(), 'v': P(), 'out': P('model'), 'down': P('model')}"),
                "a device holds 122880 bytes",
            ),
            (
                _TP.format("P(None, 'model')", "{'out': P('model'), 'gate': P('model'), 'up': P('model')}"),
                "all-reduce, expected at most 2",
            ),
            (_TP.format("P(None, 'model')", "{'down': P('model')}"), "1 all-to-all, expected none"),
        ],
    ),
    "fsdp_tp_specs": Answer(
        [
            (
                _MIXED.format("P(None, 'model')", "{'out': P('model'), 'down': P('model')}"),
                "a device holds 118784 bytes of the parameters, expected at most 29696",
            ),
            (
                _MIXED.format("P(('data', 'model'))", "{'out': P(None, None, ('data', 'model'))}"),
                "a device sends 207872 bytes in rings, expected at most 121856",
            ),
            (
                _MIXED.format(
                    "P('data', 'model')",
                    "{'out': P('model', 'data'), 'gate': P('model', 'data'), 'up': P('model', 'data')}",
                ),
                "all-reduce, expected at most 2",
            ),
            (_MIXED.format("P('model', 'data')", "{}"), "P('model', 'data') does not fit q"),
            (_MIXED.format("P(('data', 'model'), 'model')", "{}"), "of q uses a mesh axis twice"),
            (_MIXED.format("P('data', None, None, 'model')", "{}"), "expected at most 3, because k has 3"),
        ],
    ),
    "place_constraint": Answer(
        [
            (
                _FORWARD.format("return block(params, x)"),
                "each device contributes 122880 bytes, expected at most 61440",
            ),
            (_FORWARD.format(_PLACED.format("P(('data', 'model'))")), "each device contributes 126976 bytes"),
            (_FORWARD.format("block(params, x)"), "forward returns a NoneType, expected the array that block returns"),
            (_FORWARD.format("return x"), "forward returns other values than block(params, x)"),
            (_FORWARD.format("return block(params, x[:4])"), "forward returns an array of shape (4, 16, 64)"),
        ],
    ),
}

SAID = {
    ("four_ways", "dp"): [
        "holds 768 KiB of parameters, 64 KiB of the batch",
        "forward: nothing",
        "gradient: 1 all-reduce, 1344 KiB",
    ],
    ("four_ways", "indivisible"): ["ValueError", "8"],
    ("four_ways", "fsdp"): [
        "holds 96 KiB of parameters, 64 KiB of the batch",
        "forward: 6 all-gather, 672 KiB",
        "gradient: 6 all-gather, 672 KiB · 1 all-reduce, 1344 KiB",
    ],
    ("four_ways", "reveal-state_kib"): ["it is 1536"],
    ("four_ways", "like"): ["parameters: 96 KiB", "Adam: 192 KiB", "both: 288 KiB"],
    ("four_ways", "reveal-sums_per_block"): ["it is 2"],
    ("four_ways", "tp-report"): [
        "holds 384 KiB of parameters, 128 KiB of the batch",
        "forward: 2 all-reduce, 128 KiB",
        "gradient: 4 all-reduce, 768 KiB",
    ],
    ("four_ways", "mixed"): [
        "holds 96 KiB of parameters, 128 KiB of the batch",
        "forward: 6 all-gather, 288 KiB · 2 all-reduce, 128 KiB",
        "gradient: 8 all-gather",
    ],
    ("four_ways", "features"): ["all-reduce, 3"],
    ("four_ways", "constraint"): ["6 all-gather, 672 KiB · 1 all-to-all, 28 KiB"],
    ("four_ways", "recorded"): ["GiB per device", "remat 10.0 9.5 9.3"],
}

# The loss is the same in all four ways as on one device.
ALIKE = [("four_ways", r"^ *loss.*: ([0-9.]+)$", ("alone", "dp", "fsdp", "tp-report", "mixed"))]

"""Answers of the lesson cost."""

from tests.integration.lessons.book import Answer

_UNIT = """%%mhjax
import mhnb.teach
def unit_sums(parts):
    {}
mhnb.teach.check("one_latency", unit_sums)"""
_TIME = """%%mhjax
def time_of(collectives, machine):
    def seconds(each, n):
        return {}
    return sum(seconds(each, len(each.groups[0])) for each in collectives)
mhnb.teach.check("time_of", time_of)"""
_LINK = "(machine.network if each.crosses else machine.inside)"
_STEPS = '(2 * (n - 1) if each.op == "all-reduce" else n - 1)'
_BATCH = """%%mhjax
import math
def smallest_batch(n, n_params, itemsize, machine):
    link = machine.network
    return {}
mhnb.teach.check("smallest_batch", smallest_batch)"""
_EFFICIENCY = """%%mhjax
def efficiency(time, n, n_tokens):
    return {}
mhnb.teach.check("strong_efficiency", efficiency)"""
_FASTEST = '%%mhjax\nmhnb.teach.check("fastest_layout", {})'
_ADAPTER = '%%mhjax\nmhnb.teach.check("adapter_specs", {}, {})'

ANSWERS = {
    "one_latency": Answer(
        [
            (
                _UNIT.format('return jax.lax.map(lambda part: to_unit(jax.lax.psum(part, "i")), parts)'),
                "the program has 16 all-reduce, expected at most 1",
            ),
            (
                _UNIT.format('return jax.lax.psum(jax.vmap(to_unit)(parts), "i")'),
                "unit_sums(parts) on device",
            ),
            (_UNIT.format('return to_unit(jax.lax.psum(parts, "i"))'), "unit_sums(parts) on device"),
            (
                _UNIT.format('return jax.vmap(to_unit)(jax.lax.all_gather(parts, "i").sum(axis=0))'),
                "the program has 1 all-gather, expected none",
            ),
            (
                _UNIT.format('return to_unit(jax.lax.psum(parts.sum(axis=0, keepdims=True), "i"))'),
                "the shape of all devices' results is (8, 8), expected (128, 8)",
            ),
        ],
    ),
    "time_of": Answer(
        [
            (
                _TIME.format(f"each.ring_nbytes_per_device / {_LINK}.beta"),
                "for an all-reduce over hosts, 4 MiB on an H100, is 0.0001258 s, expected 0.0002098 s note That is without latency",
            ),
            (
                _TIME.format(f"{_STEPS} * {_LINK}.alpha + each.nbytes_per_device / {_LINK}.beta"),
                "4 MiB on an H100, is 0.0001679 s, expected 0.0002098 s note That is with the bytes that a device contributes",
            ),
            (
                _TIME.format(f"each.times * {_STEPS} * ({_LINK}.alpha + each.ring_nbytes_per_device / {_LINK}.beta)"),
                "is 0.000839 s, expected 0.0002098 s note That sends all bytes of the ring in each step",
            ),
            (
                _TIME.format(f"2 * (n - 1) * {_LINK}.alpha + each.ring_nbytes_per_device / {_LINK}.beta"),
                "for an all-gather inside each host",
            ),
            (
                _TIME.format(f"{_STEPS} * machine.network.alpha + each.ring_nbytes_per_device / machine.network.beta"),
                "is 9.789e-05 s, expected 1.272e-05 s note That is over the network",
            ),
            (
                _TIME.format(f"{_STEPS} * {_LINK}.alpha + each.ring_nbytes_per_device / {_LINK}.beta"),
                "in a loop of 5, 4 MiB on an H100, is 0.0001049 s, expected 0.0005246 s note That is one run",
            ),
        ],
        also_right=[
            _TIME.format(
                f"jnp.float32(each.times * ({_STEPS} * {_LINK}.alpha + each.ring_nbytes_per_device / {_LINK}.beta))"
            )
        ],
    ),
    "smallest_batch": Answer(
        [
            (
                _BATCH.format("math.ceil(itemsize / 2 * machine.flops / link.beta)"),
                "for 6 H100s, 1e+11 parameters and 4 bytes each is 19780, expected 16484",
            ),
            (
                _BATCH.format("math.ceil((n - 1) / n * machine.flops / link.beta)"),
                "for 6 H100s, 1e+11 parameters and 4 bytes each is 8242, expected 16484",
            ),
            (
                _BATCH.format("math.ceil((n - 1) / n * itemsize / 2 * machine.flops / link.beta)"),
                "for 512 H100s, 1e+10 parameters and 4 bytes each is 19742, expected 19919 note That is what transfer alone needs",
            ),
            (
                _BATCH.format("(n - 1) / n * itemsize / 2 * machine.flops / link.beta"),
                "each is 16483.3, expected a whole number",
            ),
            (
                _BATCH.format("int((n - 1) / n * itemsize / 2 * machine.flops / link.beta)"),
                "each is 16483, expected 16484 note With 16483 tokens, the ring takes longer",
            ),
            (
                _BATCH.format(
                    "math.ceil(2 * (n - 1) * (link.alpha + itemsize * n_params / n / link.beta) * machine.flops / n_params / 6)"
                ),
                "each is 10990, expected 16484 note That counts the forward pass, too",
            ),
        ],
    ),
    "strong_efficiency": Answer(
        [
            (
                _EFFICIENCY.format("time(1, n_tokens) / time(n, n_tokens)"),
                "is 0.9084, expected 0.8321 note That is weak",
            ),
            (
                _EFFICIENCY.format("time(1, n_tokens) / time(n, n_tokens / n)"),
                "is 1.664, expected 0.8321 note That is how much faster 2 devices are",
            ),
            (
                _EFFICIENCY.format("n * time(n, n_tokens / n) / time(1, n_tokens)"),
                "efficiency of 2 devices for 65536 tokens is 1.202, expected 0.8321 note That is the inverse",
            ),
            (
                _EFFICIENCY.format("time(1, n_tokens / n) / time(n, n_tokens / n)"),
                "waits 5 ms for its input, is 0.4914, expected 0.3741 note That compares with one device",
            ),
        ],
    ),
    "fastest_layout": Answer(
        [
            (
                _FASTEST.format({8192: "model over hosts", 131072: "data parallel"}),
                "with 131072 tokens, data parallel communicates for 19.0 ms, expected 9.3 ms",
            ),
            (
                _FASTEST.format({8192: "model inside a host", 131072: "model inside a host"}),
                "with 8192 tokens, model inside a host communicates for 8.2 ms, expected 2.4 ms",
            ),
            (
                _FASTEST.format({8192: "model over hosts", 131072: "model over hosts"}),
                "with 131072 tokens, model over hosts communicates for 32.6 ms, expected 9.3 ms",
            ),
            (
                _FASTEST.format({8192: "over hosts", 131072: "inside"}),
                "the layout for 8192 tokens is 'over hosts', expected one of data parallel",
            ),
            (
                _FASTEST.format({8192: ["model over hosts"], 131072: "data parallel"}),
                "the layout for 8192 tokens is ['model over hosts'], expected one of data parallel",
            ),
            (_FASTEST.format(["model over hosts"]), "expected a dict with the keys 8192 and 131072"),
        ],
    ),
    "adapter_specs": Answer(
        [
            (_ADAPTER.format('P(None, "model")', 'P("data")'), "a device holds 32 MiB of w"),
            (_ADAPTER.format('P("data", None)', 'P("model")'), "bytes for other hosts, expected at most 262144"),
            (_ADAPTER.format('P(None, "data")', 'P("data")'), "bytes for other hosts, expected at most 262144"),
            (_ADAPTER.format('P(None, "data")', "P()"), "a device holds 128 MiB of x"),
            (_ADAPTER.format('P(None, "modle")', 'P("data")'), "does not fit float32[4096, 4096] on this mesh"),
            (
                _ADAPTER.format('P(None, None, "data")', 'P("model")'),
                "has 3 entries, expected at most one for each of 2 dims",
            ),
            (_ADAPTER.format('"data"', 'P("model")'), "w_spec is a str, expected a PartitionSpec"),
        ],
    ),
}

SAID = {
    ("cost", "message"): [
        "1e+03 B: NVLink 3.4 µs, InfiniBand 14.0 µs",
        "1e+09 B: NVLink 2225.6 µs, InfiniBand 20014.0 µs",
    ],
    ("cost", "report"): ["all-reduce", "data, model (hosts)", "512.0 MiB 384.0 MiB"],
    ("cost", "ring"): ["InfiniBand: 0.20 ms of latency + 18.8 ms of transfer", "NVLink: 0.05 ms of latency + 2.1 ms"],
    ("cost", "reveal-ops_per_byte"): ["it is 31"],
    ("cost", "roof"): [
        "1 rows: 0.5 per byte, bound by memory, 0.3%",
        "64 rows: 31.0 per byte, bound by memory, 21.0%",
        "1024 rows: 341.3 per byte, bound by compute, 100.0%",
    ],
    ("cost", "reveal-batch_times_four"): ["it is 1.0"],
    ("cost", "threshold"): [
        "NVLink: 2,198 tokens per device",
        "InfiniBand: 19,780 tokens",
        "ICI: 4,378 tokens",
        "in bfloat16: 2,550",
    ],
    ("cost", "weak"): ["n = 2: 117.5 ms, efficiency 91%", "n = 64: 129.6 ms, efficiency 82%"],
    ("cost", "too-few"): ["IndivisibleError", "8 does not divide 4"],
}

"""Answers of the lesson training."""

from tests.integration.lessons.book import Answer

_STEP = "%%mhjax\ndef fixed_step(w, x, y):\n    {}\nmhnb.teach.check('fixed_step', fixed_step)"
_MEAN = "grads = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)"
_ACCUMULATE = (
    "%%mhjax\nloss = lambda w, x: jnp.mean((x @ w) ** 2)\ndef accumulate(w, xs):\n    {}\n"
    "mhnb.teach.check('accumulate_once', accumulate)"
)
_LOCAL = "sum(jax.grad(loss)(w, x) for x in xs)"
_SPEC = "%%mhjax\ndef spec_of(shape):\n    {}\nmhnb.teach.check('split_params', spec_of)"

ANSWERS = {
    "fixed_step": Answer(
        [
            (_STEP.format(f"{_MEAN}\n    return jax.tree_map(lambda p, g: p - 0.1 * g, w, grads)"), "AttributeError"),
            (_STEP.format(f"{_MEAN}\n    return w - 0.1 * jax.lax.pmean(grads, 'batch')"), "nbound axis name"),
            (
                _STEP.format(f"{_MEAN}\n    return w - 0.1 * grads / 8"),
                "Every number of your gradient is 0.125 times the right one",
            ),
            (
                _STEP.format(f"{_MEAN}\n    return jax.lax.with_sharding_constraint(w - 0.1 * grads, whole)[:3]"),
                "the new w is float32[3], expected float32[6]",
            ),
        ],
    ),
    "accumulate_once": Answer(
        [
            (_ACCUMULATE.format(f"return {_LOCAL} / len(xs)"), "Your gradient differs from device to device"),
            (
                _ACCUMULATE.format(f"return jax.lax.psum({_LOCAL}, 'data') / len(xs)"),
                "Every number of your gradient is 8 times the right one",
            ),
            (
                _ACCUMULATE.format(
                    "add = lambda total, x: (total + jax.lax.pmean(jax.grad(loss)(w, x), 'data'), None)\n"
                    "    return jax.lax.scan(add, jnp.zeros_like(w), xs)[0] / len(xs)"
                ),
                "the program has 4 all-reduce, expected at most 1",
            ),
            (
                _ACCUMULATE.format(
                    "whole_xs = jax.lax.all_gather(xs, 'data', axis=1, tiled=True)\n"
                    "    return sum(jax.grad(loss)(w, x) for x in whole_xs) / len(xs)"
                ),
                "1 all-gather, expected none",
            ),
        ],
    ),
    "split_params": Answer(
        [
            (_SPEC.format("return jax.P('data')"), "which does not fit"),
            (_SPEC.format("return jax.P()"), "a device holds 1536 bytes, expected at most 192"),
            (_SPEC.format("return jax.P('data') if shape and shape[0] % 8 == 0 else jax.P()"), "spec_of((3, 128))"),
            (_SPEC.format("return 'data'"), "is a str, expected a PartitionSpec"),
            (
                _SPEC.format("return jax.P(*['data' if size % 8 == 0 else None for size in shape])"),
                "spec_of((16, 16)) is P('data', 'data'), expected the axis at most once",
            ),
        ],
    ),
}

SAID = {
    ("training", "step-collectives"): ["all-reduce"],
    ("training", "train"): ["log: [", "rank 0 differs"],
    ("training", "printed"): ["nbound axis name"],
    ("training", "printed-map"): ["AttributeError", "tree_map"],
    ("training", "printed-key"): ["64 rows, 16 of them different"],
    ("training", "reveal-rows_that_differ"): ["it is 16"],
    ("training", "printed-local"): ["ncompatible devices"],
    ("training", "twin"): ["True"],
    ("training", "together"): ["OrderMismatch", "nothing was launched"],
    ("training", "restore"): ["step 40"],
    ("training", "spread"): [
        "P(): holds 262144, sends [('all-reduce'",
        "P('data', None): holds 32768, sends [('all-gather', 32768",
        "P(None, 'data'): holds 32768, sends [('all-gather', 8192",
    ],
    ("training", "accumulate"): ["all-reduce runs 4 times, with 16 bytes per device"],
    ("training", "uneven"): ["in order 243 · longest first 158 · mean 154.5"],
    ("training", "restart"): ["replayed In [2-5] and 1 push"],
}

ALIKE = [("training", r"^ *after 50 steps ([0-9.]+)$", ("save", "resumed"))]

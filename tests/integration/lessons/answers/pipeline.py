"""Answers of the lesson pipeline."""

from mhnb.teach.exercise import Exercise, find_task, read_solution
from tests.integration.lessons.book import Answer


def _right(name: str, *changes: tuple[str, str]) -> str:
    """Return the right answer with lines replaced."""
    task = find_task(name, Exercise)
    assert isinstance(task, Exercise)
    source = read_solution(task)
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source


_BUBBLE = "%%mhjax\ndef bubble(n_batches, n_stages):\n    return {}\nmhnb.teach.check('pipeline_bubble', bubble)"
_KEEP = "%%mhjax\ndef keep(expert, gate, capacity):\n    {}\nmhnb.teach.check('kept_tokens', keep)"
_MOE = "%%mhjax\ndef moe(w, x, expert):\n    {}\nmhnb.teach.check('expert_layer', moe)"
_ATTEND = "%%mhjax\ndef attend(q, k, v):\n    {}\nmhnb.teach.check('ring_attention', attend)"

ANSWERS = {
    "pipeline_bubble": Answer(
        [
            (
                _BUBBLE.format("n_batches / (n_batches + n_stages - 1)"),
                "the share of slots that are used, expected 0.750",
            ),
            (
                _BUBBLE.format("(n_stages - 1) / n_batches"),
                "bubble(1, 4) is 3.000, expected 0.750",
            ),
            (
                _BUBBLE.format("1 - 1 / n_stages"),
                "bubble(4, 4) is 0.750, expected 0.429",
            ),
            (_BUBBLE.format("n_stages / (n_batches + n_stages)"), "bubble(1, 4) is 0.800, expected 0.750"),
            (_BUBBLE.format("None"), "bubble(1, 4) is None, expected 0.75"),
        ],
    ),
    "pipeline_schedule": Answer(
        [
            (
                _right("pipeline_schedule", ("ys[S - 1:]", "ys")),
                "a device returns an array of shape (9, 2, 16), expected (6, 2, 16)",
            ),
            (
                _right("pipeline_schedule", ("ys[S - 1:]", "ys[:len(batches)]")),
                "output 3 of the last stage is microbatch 0, expected microbatch 3",
            ),
            (
                _right("pipeline_schedule", ("t, len", "t + 1, len")),
                "output 0 of the last stage is microbatch 1, expected microbatch 0",
            ),
            (
                _right("pipeline_schedule", ("S - 1)", "S)"), ("ys[S - 1:]", "ys[S - 1:-1]")),
                "the program has 10 collective-permute, expected at most 9",
            ),
            (
                _right(
                    "pipeline_schedule",
                    ('lax.ppermute(y, "stage", down)', 'lax.all_gather(y, "stage")[lax.axis_index("stage") - 1]'),
                ),
                "the program has 9 all-gather, expected none",
            ),
        ],
    ),
    "online_softmax": Answer(
        [
            (
                _right("online_softmax", ("jnp.maximum(m, scores.max(axis=1))", "jnp.zeros_like(m)")),
                "after block 1 of 4, the maximum m of row 0 is 0.0",
            ),
            (
                _right("online_softmax", ("jnp.maximum(m, scores.max(axis=1))", "scores.max(axis=1)")),
                "after block 2 of 4, the maximum m of row 1 is 208.691, expected 214.17",
            ),
            (_right("online_softmax", ("l * shrink", "l")), "after block 2 of 4, the sum l of row"),
            (_right("online_softmax", ("o * shrink[:, None]", "o")), "after block 2 of 4, the output o of row"),
            (
                _right("online_softmax", ("+ p @ values", "+ p @ values / p.sum(axis=1)[:, None]")),
                "after block 1 of 4, the output o of row 0",
            ),
            (
                _right(
                    "online_softmax",
                    (
                        "return top, l * shrink + p.sum(axis=1), o * shrink[:, None] + p @ values",
                        "new = l * shrink + p.sum(axis=1)",
                    ),
                    (
                        "mhnb.teach",
                        "    return top, new, (o * (l * shrink)[:, None] + p @ values) / new[:, None]\nmhnb.teach",
                    ),
                ),
                "It is divided by l, which is for the end",
            ),
        ],
    ),
    "ring_attention": Answer(
        [
            (
                _right("ring_attention", ("range(7)", "range(0)")),
                "each device attends to its own keys only, expected one softmax over all keys",
            ),
            (
                _right("ring_attention", ("range(7)", "range(6)")),
                "each device leaves out the keys of another device, expected one softmax over all keys",
            ),
            (
                _right("ring_attention", ("    state = merge(state, score(q, k), v)\n    for", "    for")),
                "each device leaves out its own keys",
            ),
            (_right("ring_attention", ("o / l[:, None]", "o")), "the results are not divided by l"),
            (
                _right(
                    "ring_attention", ('k, v = lax.ppermute((k, v), "seq", ring)', 'k = lax.ppermute(k, "seq", ring)')
                ),
                "the keys travel, and the values stay",
            ),
            (
                _right(
                    "ring_attention", ('k, v = lax.ppermute((k, v), "seq", ring)', 'q = lax.ppermute(q, "seq", ring)')
                ),
                "of its result",
            ),
            (
                _ATTEND.format(
                    "p = jnp.exp(score(q, k))\n"
                    "    l, o = p.sum(axis=1), p @ v\n"
                    "    for _ in range(7):\n"
                    "        k, v = lax.ppermute((k, v), 'seq', ring)\n"
                    "        p = jnp.exp(score(q, k))\n"
                    "        l, o = l + p.sum(axis=1), o + p @ v\n"
                    "    return o / l[:, None]"
                ),
                "attend(q, k, v) has results that are not finite, expected finite numbers",
            ),
            (
                _right(
                    "ring_attention",
                    ("    state = merge(state, score(q, k), v)\n    for", "    for"),
                    ("range(7)", "range(8)"),
                ),
                "the program has 16 collective-permute, expected at most 14",
            ),
            (
                _ATTEND.format(
                    "k, v = (lax.all_gather(each, 'seq', tiled=True) for each in (k, v))\n"
                    "    return jax.nn.softmax(score(q, k)) @ v"
                ),
                "the program has 2 all-gather, expected none",
            ),
            (
                _ATTEND.format(
                    "pairs = [(k, v)]\n"
                    "    for _ in range(7):\n"
                    "        pairs.append(lax.ppermute(pairs[-1], 'seq', ring))\n"
                    "    k, v = map(jnp.concatenate, zip(*pairs))\n"
                    "    return jax.nn.softmax(score(q, k)) @ v"
                ),
                "a device holds an array of 131072 bytes, expected at most 16384",
            ),
            (
                _ATTEND.format(
                    "total = jax.nn.softmax(score(q, k)) @ v\n"
                    "    for _ in range(7):\n"
                    "        k, v = lax.ppermute((k, v), 'seq', ring)\n"
                    "        total += jax.nn.softmax(score(q, k)) @ v\n"
                    "    return total / 8"
                ),
                "each row is the mean of one softmax per block",
            ),
            (
                _right("ring_attention", ("score(q, k)", "q @ k.T")),
                "the scores are not divided by the square root of the width",
            ),
        ],
        setup=_right("online_softmax"),
    ),
    "kept_tokens": Answer(
        [
            (
                _KEEP.format("return place_of(expert) < capacity"),
                "with capacity 1, expert 0 keeps the tokens [2], expected [7]",
            ),
            (
                _right("kept_tokens", ("< capacity", "<= capacity")),
                "with capacity 1, expert 0 keeps 2 of its 2 tokens, expected 1",
            ),
            (
                _right("kept_tokens", ("gate[:, None] < gate", "gate[:, None] > gate")),
                "expert 0 keeps the tokens [2], expected [7]",
            ),
            (
                _KEEP.format("return jnp.argsort(jnp.argsort(-gate)) < 4 * capacity"),
                "expert 0 keeps 0 of its 2 tokens, expected 1",
            ),
            (
                _right("kept_tokens", (".sum(axis=1) < capacity", ".sum(axis=1)")),
                "keep returns int32[12], expected bool[12]",
            ),
        ],
    ),
    "expert_layer": Answer(
        [
            (_MOE.format("return jnp.tanh(x @ w[0])"), "went through expert"),
            (_right("expert_layer", ("exchange(jnp.tanh(arrived @ w[0]))", "jnp.tanh(arrived @ w[0])")), "of device"),
            (
                _right(
                    "expert_layer",
                    ('.at[expert, place_of(expert)].get(mode="fill", fill_value=0)', "[expert, place_of(expert)]"),
                ),
                "was dropped, and its result begins with",
            ),
            (
                _MOE.format(
                    "w = lax.all_gather(w, 'expert', tiled=True)\n"
                    "    done = jnp.tanh(jnp.einsum('td,tdf->tf', x, w[expert]))\n"
                    "    return jnp.where(place_of(expert)[:, None] < C, done, 0)"
                ),
                "the program has 1 all-gather, expected none",
            ),
            (
                _right(
                    "expert_layer",
                    (
                        "done = ",
                        "lax.psum(arrived.sum(), 'expert')\n    done = 0 * lax.pmax(arrived.max(), 'expert') + ",
                    ),
                ),
                "the program has 1 all-reduce, expected none",
            ),
        ],
    ),
}

SAID = {
    ("pipeline", "refused"): ["carry input and carry output must have equal types", "pcast", "scan-vma"],
    ("pipeline", "same"): ["right: [True, True]", "right: [False, False]"],
    ("pipeline", "chain-collectives"): ["collective-permute f32[8,64] stage (hosts) 4 2.0 KiB 2.0 KiB"],
    ("pipeline", "reveal-permutes_in_training"): ["it is 8"],
    ("pipeline", "one-by-one"): ["32 permutes"],
    ("pipeline", "plain"): ["all-gather f32[512,16]", "all-gather f32[16,512]", "a device sends 56.0 KiB"],
    ("pipeline", "whose"): ["[[0, 7, 6, 5, 4, 3, 2, 1], [1, 0, 7, 6, 5, 4, 3, 2]]"],
    ("pipeline", "reveal-ring_sends_kib"): ["it is 56"],
    ("pipeline", "online"): ["m = 201.0 l = 1.3679", "m = 203.0 l = 1.5713"],
    ("pipeline", "experts"): ["tokens per expert [33, 2, 6, 3, 6, 2, 7, 5]"],
    ("pipeline", "place"): ["dropped []", "dropped [5, 6, 7]", "places [0, 0, 0, 0, 1, 2, 3, 4]"],
    ("pipeline", "exchange"): ["[[3, 7], [9, 10]", "[0, 0]"],
    ("pipeline", "compare"): ["DP 18.0 GiB", "FSDP 27.0 GiB", "TP 48.0 GiB", "pipeline 0.5 GiB"],
}

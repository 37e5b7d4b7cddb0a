"""Answers of the lesson loading."""

from tests.integration.lessons.book import Answer

_SHARE = "%%mhjax\nshare = {}\nmhnb.teach.check('my_share', share)"
_BATCH = """%%mhjax
def batch(step):
    numbers = np.arange({begin}, {begin} + {rows})
    local = np.stack([numbers, numbers + 0.5], axis=1).astype({kind})
    return jax.make_array_from_process_local_data({sharding}, local)

mhnb.teach.check('global_batch', batch)"""
_GOOD = {"begin": "16 * step + 4 * rank", "rows": "4", "kind": "np.float32", "sharding": "by_rows"}
_STEPS = "%%mhjax\nsteps = {}\nmhnb.teach.check('steps_for_all', steps)"
_ALL = "multihost_utils.process_allgather(np.array(have))"

ANSWERS = {
    "my_share": Answer(
        [
            (
                _SHARE.format("list(range(22))[rank::ranks]"),
                "Ranks with fewer records make fewer steps, and this one would wait",
            ),
            (_SHARE.format("list(range(rank * 5, rank * 5 + 5))"), "Take every fourth record"),
            (_SHARE.format("list(range(22))"), "share has 22 records, expected 5 on every rank"),
            (_SHARE.format("range(rank, 20, ranks)"), "share is a range, expected a list"),
        ],
    ),
    "global_batch": Answer(
        [
            (
                _BATCH.format(**_GOOD | {"begin": "16 * step"}),
                "The first row of this rank is record 0, which is for rank 0 in batch(0)",
            ),
            (_BATCH.format(**_GOOD | {"rows": "16"}), "batch(0) is float32[64, 2], expected float32[16, 2]"),
            (
                _BATCH.format(**_GOOD | {"begin": "4 * rank"}),
                "batch(1) on device 0:0 holds 0.0 at [0, 0], expected 16.0",
            ),
            (_BATCH.format(**_GOOD | {"kind": "np.float16"}), "batch(0) is float16[16, 2], expected float32[16, 2]"),
            ("%%mhjax\nmhnb.teach.check('global_batch', by_rows)", "expected a function of the step number"),
        ],
    ),
    "steps_for_all": Answer(
        [
            (
                _STEPS.format("have"),
                "rank 1 yours steps is 5, expected 4 note The ranks with the fewest batches end first",
            ),
            (
                _STEPS.format(f"int({_ALL}.max())"),
                "not yet · 10.3 steps_for_all on ranks 0-3 yours steps is 6, expected 4",
            ),
            (
                _STEPS.format("int(multihost_utils.broadcast_one_to_all(np.array(have)))"),
                "so the number must come from all ranks",
            ),
            (_STEPS.format(f"{_ALL}.tolist()"), "steps is [6, 5, 6, 4] (list, not int), expected 4"),
        ],
    ),
}

SAID = {
    ("loading", "measure"): [
        "global_data 160 records read",
        "per_device 40 records read",
        "per_process 40 records read",
        "reshard 40 records read",
        "first row [16.0, 16.5]",
    ],
    ("loading", "shard"): ["6 records: [1, 5, 9, 13, 17, 21]", "5 records: [3, 7, 11, 15, 19]"],
    ("loading", "last"): ["OrderMismatch", "ranks 2-3 finished the cell without reaching it"],
    ("loading", "agree"): ["ranks 0-3", "batch 0 sum 60.0", "batch 1 sum 188.0"],
    ("loading", "careless-look"): ["never read: 3", "read twice or more: 2"],
    ("loading", "fixed-look"): ["every record once: True"],
    ("loading", "unequal"): ["from (16, 2) to (16, 2) sum 248.0", "from (4, 2) to (16, 2) sum 248.0"],
    ("loading", "padding"): ["mean 6.796875 right 7.25"],
    ("loading", "replicated"): ["(4,) shard (4,) replicas here [6, 7]", "(4,) shard (1,) replicas here [0, 1]"],
}

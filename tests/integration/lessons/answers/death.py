"""Answers of the lesson death."""

from tests.integration.lessons.book import Answer

_PIECES = "%%mhjax\ndef pieces(x):\n    return [{}]\nmhnb.teach.check('each_piece_once', pieces)"
_SHARDS = "np.asarray(shard.data) for shard in x.addressable_shards"
_RESTORE = "%%mhjax\ndef restore(shape, sharding, read):\n    {}\nmhnb.teach.check('read_own', restore)"
_ALL = "everything = read(tuple(slice(0, size) for size in shape))"
_COMMON = "%%mhjax\ndef common(saved):\n    {}\nmhnb.teach.check('common_step', common)"
_GATHER = "multihost_utils.process_allgather"

ANSWERS = {
    "each_piece_once": Answer(
        [
            (_PIECES.format(_SHARDS), "writes a copy of it"),
            (_PIECES.format(f"{_SHARDS} if jax.process_index() == 0"), "this rank writes nothing, expected 1 of shape"),
            (_PIECES.format("np.asarray(x.addressable_shards[0].data)"), "this rank writes 1 of shape"),
            (_PIECES.format("np.asarray(x)"), "non-addressable"),
        ],
    ),
    "read_own": Answer(
        [
            (
                _RESTORE.format(f"{_ALL}\n    return jax.device_put(everything, sharding)"),
                "its devices do not hold all that was read",
            ),
            (_RESTORE.format(f"{_ALL}\n    return everything"), "is a NumPy array, expected a jax.Array"),
            (
                _RESTORE.format(
                    "return jax.make_array_from_callback(shape, jax.NamedSharding(sharding.mesh, jax.P('data')), read)"
                ),
                "expected the given sharding",
            ),
            (
                _RESTORE.format(
                    "return jax.make_array_from_callback(shape, sharding, lambda index: read(index)[::-1])"
                ),
                "holds",
            ),
        ],
    ),
    "common_step": Answer(
        [
            (_COMMON.format("return max(saved)"), "common(saved), if rank 3 has only 10, is 20, expected 10"),
            (
                _COMMON.format(f"return {_GATHER}(np.array(max(saved))).min()"),
                "if 30 is on even ranks, 40 on odd ones, is 30, expected 10",
            ),
            (_COMMON.format(f"return {_GATHER}(np.array(sorted(saved))).min()"), "expected 20"),
            (_COMMON.format("max(saved)"), "returns nothing, expected 20"),
            (_COMMON.format(f"return {_GATHER}(np.array(sorted(saved))).max()"), "OrderMismatch"),
        ],
    ),
}

SAID = {
    ("death", "kill"): ["rank 2", "SIGKILL"],
    ("death", "reveal-ranks_left"): ["it is 0"],
    ("death", "refused"): ["NotClean", "%mhjax restart --replay"],
    ("death", "replay"): ["replayed In [2-5] and 1 push", "In [7]"],
    ("death", "twice"): ["['up', 'up']", "[-6, -6]"],
    ("death", "nobody"): ["-6 True"],
    ("death", "back"): ["replayed In [2] and 1 push"],
}

ALIKE = [
    ("death", r"^ *after 3 steps ([0-9.]+)$", ("train", "restore")),
    ("death", r"^ *after 5 steps ([0-9.]+)$", ("more", "replayed", "resume")),
]

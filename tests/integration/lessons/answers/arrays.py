"""Answers of the lesson arrays."""

from tests.integration.lessons.book import Answer

_CALLBACK = """%%mhjax
def values(index):
    rows, columns = (np.arange(*part.indices(size)) for part, size in zip(index, (8, 4)))
    return {}

x = jax.make_array_from_callback((8, 4), {}, values)
mhnb.teach.check('from_callback', x)"""
_GOOD = "(10 * rows[:, None] + columns).astype(np.float32)"
_LOCAL = """%%mhjax
own = jax.process_index()
x = jax.make_array_from_process_local_data({}, table[:, {}])
mhnb.teach.check('from_local_columns', x)"""
_SINGLE = """%%mhjax
places = [jax.devices().index(device) for device in jax.local_devices()]
pieces = [jax.device_put(np.full(2, place, np.float32), device) for place, device in zip({}, jax.local_devices())]
x = jax.make_array_from_single_device_arrays((16,), NamedSharding(mesh, jax.P({})), pieces)
mhnb.teach.check('from_single_devices', x)"""
_FITS = """%%mhjax
ones = np.ones((64, 32), np.float32)
x = jax.make_array_from_callback({}, {}, lambda index: ones[index])
mhnb.teach.check('fits', x)"""
_ALL = "%%mhjax\ny = {}\nmhnb.teach.check('all_of_it', y)"

ANSWERS = {
    "from_callback": Answer(
        [
            (
                _CALLBACK.format("(10 * columns + rows[:, None]).astype(np.float32)", "by_rows"),
                "x on device 0:0 holds 10.0 at [0, 1], expected 1.0",
            ),
            (_CALLBACK.format("10 * rows[:, None] + columns", "by_rows"), "x is int32[8, 4], expected float32[8, 4]"),
            (
                _CALLBACK.format(_GOOD, "NamedSharding(mesh, jax.P(None, 'model'))"),
                "with shards of shape (8, 2), expected shards of shape (2, 4)",
            ),
            (
                _CALLBACK.format("(10 * (rows[:, None] - rows[0]) + columns).astype(np.float32)", "by_rows"),
                "on ranks 1-3 · right on rank 0",
            ),
            ("%%mhjax\nmhnb.teach.check('from_callback', table)", "x is a NumPy array, expected a jax.Array"),
        ],
    ),
    "from_local_columns": Answer(
        [
            (_LOCAL.format("by_columns", "3 - own : 4 - own"), "x on device 3:0 holds 0.0 at [0, 3], expected 3.0"),
            (_LOCAL.format("by_rows", "own : own + 1"), "x is float32[32, 1], expected float32[8, 4]"),
            (_LOCAL.format("by_columns", ":"), "x is float32[8, 16], expected float32[8, 4]"),
            (
                "%%mhjax\nx = jax.numpy.asarray(table)\nmhnb.teach.check('from_local_columns', x)",
                "x is on 1 device, expected all 8",
            ),
        ],
    ),
    "from_single_devices": Answer(
        [
            (_SINGLE.format("places[::-1]", "('data', 'model')"), "x on device 3:0 holds 7.0 at [12], expected 6.0"),
            (_SINGLE.format("[0, 1]", "('data', 'model')"), "on ranks 1-3 · right on rank 0"),
            (_SINGLE.format("places", "('model', 'data')"), "sharded by"),
        ],
    ),
    "all_of_it": Answer(
        [
            (_ALL.format("source"), "with shards of shape (2, 4), expected shards of shape (8, 4)"),
            (
                _ALL.format("jax.jit(lambda a: 2 * a, out_shardings=NamedSharding(mesh, jax.P()))(source)"),
                "y on device ‹rank›:0 holds 2.0 at [0, 1], expected 1.0",
            ),
            (_ALL.format("table"), "y is a NumPy array, expected a jax.Array"),
            (_ALL.format("jax.device_put(table, jax.local_devices()[0])"), "y is on 1 device, expected all 8"),
        ],
    ),
    "fits": Answer(
        [
            (_FITS.format("ones.shape", "by_rows"), "x takes 2048 bytes on device ‹rank›:0, expected at most 1024"),
            (
                _FITS.format("ones.shape", "NamedSharding(mesh, jax.P())"),
                "Its shard is (64, 32) of (64, 32), and 8 devices hold the same one",
            ),
            (_FITS.format("(32, 32)", "by_rows"), "x is float32[32, 32], expected float32[64, 32]"),
            ("%%mhjax\nx = jax.numpy.ones((64, 32))\nmhnb.teach.check('fits', x)", "x is on 1 device, expected all 8"),
        ],
    ),
}

SAID = {
    ("arrays", "full"): ["(8, 4) in shards of (2, 4)"],
    ("arrays", "differ"): ["AssertionError", "the same value on every rank"],
    ("arrays", "local"): ["from (2, 4) on each rank to (8, 4)"],
    ("arrays", "callback"): ["asked for rows 4 to 6"],
    ("arrays", "shards"): ["rows 6 to 8 replica 1"],
    ("arrays", "memory-command"): ["512.0 KiB P() 3.5 MiB", "512.0 KiB P(None, 'model') 1.5 MiB"],
    ("arrays", "print"): ["Array(shape=(8, 4), dtype=float32)"],
    ("arrays", "fetch"): ["Fetching value for", "%mhjax pull x"],
    ("arrays", "pull"): ["[30. 31. 32. 33.]"],
    ("arrays", "gather"): ["ndarray [30. 31. 32. 33.]"],
    ("arrays", "silent"): ["(4, 4)", "(8, 4)", "made one array with different shapes"],
    ("arrays", "accept"): ["tainted accepted, clean now"],
    ("arrays", "single"): ["(8, 4) from 2 pieces on each rank"],
}

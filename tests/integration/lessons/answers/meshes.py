"""Answers of the lesson meshes."""

from tests.integration.lessons.book import Answer

_SPEC = "%%mhjax\nspec = {}\nmhnb.teach.check('columns_apart', spec)"
_PAIRS = "%%mhjax\npair_mesh = {}\nmhnb.teach.check('pairs_inside', pair_mesh)"
_SHAPE = "%%mhjax\nimport math\ndef shard_shape(shape, axes, spec):\n{}\nmhnb.teach.check('shard_shape', shard_shape)"
_NO_TUPLES = "    return tuple(size // axes.get(str(entry), 1) for size, entry in zip(shape, spec))"
_AS_LIST = "    return [size // axes.get(entry, 1) for size, entry in zip(shape, spec)]"
_BY_PLACE = "    return tuple(size // n for size, n in zip(shape, axes.values()))"
_CUTS = "[() if entry is None else (entry,) if isinstance(entry, str) else entry for entry in spec]"
_SUM = f"    return tuple(s // (sum(axes[name] for name in cut) or 1) for s, cut in zip(shape, {_CUTS}))"
_AS_FLOATS = f"    return tuple(s / math.prod(axes[name] for name in cut) for s, cut in zip(shape, {_CUTS}))"

ANSWERS = {
    "columns_apart": Answer(
        [
            (_SPEC.format("P(('data', 'model'), None)"), "The first entry of a spec is for the rows"),
            (
                _SPEC.format("P(None, ('model', 'data'))"),
                "device 3:0 would hold rows 0:8 and columns 3:4, expected rows 0:8 and columns 6:7",
            ),
            (_SPEC.format("P(None, 'data')"), "A column is on several devices"),
            (_SPEC.format("P(None, 'data', 'model')"), "spec has 3 entries, expected at most 2, one for each dim"),
            (_SPEC.format("P(None, 'rows')"), "does not fit float32[8,8] on this mesh"),
            (_SPEC.format("(None, ('data', 'model'))"), "spec is a tuple, expected a PartitionSpec"),
        ],
    ),
    "pairs_inside": Answer(
        [
            (
                _PAIRS.format("Mesh(np.array(jax.devices()).reshape(2, 4).T, ('row', 'pair'))"),
                "pair 0 has devices of ranks 0 and 2",
            ),
            (
                _PAIRS.format("Mesh(np.array(jax.devices()).reshape(4, 2), ('pair', 'row'))"),
                "the shape of the mesh is {'pair': 4",
            ),
            (
                _PAIRS.format("Mesh(np.array(jax.devices()).reshape(2, 4), ('row', 'pair'))"),
                "expected {'row': 4, 'pair': 2}",
            ),
            (
                _PAIRS.format("Mesh(np.repeat(jax.devices()[::2], 2).reshape(4, 2), ('row', 'pair'))"),
                "the mesh has 4 devices, expected each of the 8 once",
            ),
            (_PAIRS.format("np.array(jax.devices()).reshape(4, 2)"), "mesh is a NumPy array, expected"),
        ],
    ),
    "shard_shape": Answer(
        [
            (
                _SHAPE.format("    return shape"),
                "shard_shape((8, 6), {'data': 4, 'model': 2}, ('data', None)) is (8, 6), expected (2, 6)",
            ),
            (_SHAPE.format(_NO_TUPLES), "An entry that is a tuple divides the dim by the product"),
            (_SHAPE.format(_SUM), "is (5, 6), expected (4, 6)"),
            (_SHAPE.format(_AS_FLOATS), "is (2.0, 6.0), expected (2, 6)"),
            (_SHAPE.format(_AS_LIST), "A shape is a tuple"),
            (_SHAPE.format(_BY_PLACE), "is (2, 3), expected (2, 6)"),
        ],
    ),
}

SAID = {
    ("meshes", "mesh"): ["[[0, 0], [1, 1], [2, 2], [3, 3]]"],
    ("meshes", "slices"): ["['rows 0:2', 'rows 0:2', 'rows 2:4'"],
    ("meshes", "both"): ["rows 4:6, columns 3:6"],
    ("meshes", "pod"): ["{'host': 1, 'chip': 8}", "shard (1, 6)", "shard (8, 3)", "shard (2, 3)"],
    ("meshes", "missing"): ["rows", "ranks 0-3"],
    ("meshes", "uneven"): ["4 does not divide 6"],
}

"""Answers of the lesson slices."""

from tests.integration.lessons.book import Answer

_MESH = "%%mhjax\nmesh = {}\nmhnb.teach.check('model_in_host', mesh)"
_ROWS = "%%mhjax\ndef rows_by_slice(chips):\n    {}\nmhnb.teach.check('rows_by_slice', rows_by_slice)"
_CROSSING = "%%mhjax\ndef crossing(places, names):\n    {}\nmhnb.teach.check('crossing_axes', crossing)"
_HYBRID = "mesh_utils.create_hybrid_device_mesh({}, process_is_granule=True)"
_BY_ID = "return np.array(sorted(chip.id for chip in chips)).reshape(len({chip.slice_index for chip in chips}), -1)"
_BY_HOST = (
    "return np.array([[c.id for c in chips if c.process_index == at] for at in {c.process_index for c in chips}])"
)
_IN_STEPS = "return np.array([[c.id for c in chips[at::2]] for at in range(2)])"
_AS_LISTS = "return [[c.id for c in chips if c.slice_index == at] for at in sorted({c.slice_index for c in chips})]"
_CHIPS = "return np.array(sorted(chips, key=lambda c: c.slice_index)).reshape(len({c.slice_index for c in chips}), -1)"
_TWICE = "return np.array([[c.id for c in chips if c.slice_index == at][:1] * (len(chips) // 2) for at in range(2)])"
_HYBRID_ROWS = (
    "n = len({chip.slice_index for chip in chips})\n"
    "    grid = mesh_utils.create_hybrid_device_mesh((1, len(chips) // n), (n, 1), chips)\n"
    "    return np.array([[chip.id for chip in row] for row in grid])"
)
_FIRST_LINE = "return tuple(n for d, n in enumerate(names) if len(set(np.moveaxis(places, d, -1).reshape(-1, places.shape[d])[0])) > 1)"

ANSWERS = {
    "model_in_host": Answer(
        [
            (_MESH.format(_HYBRID.format("(2, 1), (1, 4)")), "mesh is a NumPy array, expected a jax.sharding.Mesh"),
            (
                _MESH.format("jax.make_mesh((4, 2), ('data', 'model'))"),
                "the mesh has the axes data 4, model 2, expected model 2, data 4",
            ),
            (
                _MESH.format(f"Mesh({_HYBRID.format('(1, 2), (4, 1)')}, ('model', 'data'))"),
                "the mesh has the axes model 4, data 2, expected model 2, data 4",
            ),
            (
                _MESH.format(f"Mesh({_HYBRID.format('(1, 2), (2, 2)')}, ('model', 'data'))"),
                "at data 0, the devices along model belong to ranks 0, 2, expected all of one rank",
            ),
            (
                _MESH.format("Mesh(np.array([jax.local_devices()] * 4).T, ('model', 'data'))"),
                "the mesh has 2 devices, expected each of the 8 once",
            ),
        ],
    ),
    "rows_by_slice": Answer(
        [
            (_ROWS.format(_IN_STEPS), "row 0 for the recorded chips has chip 200000, which is in slice 1"),
            (_ROWS.format(_BY_HOST), "the shape for the recorded chips is (4, 4), expected (2, 8)"),
            (_ROWS.format(_AS_LISTS), "it returns a list, expected a NumPy array of ids"),
            (
                _ROWS.format(_BY_ID),
                "row 0 for chips whose ids are highest in slice 0 has chip 800, which is in slice 1",
            ),
            (_ROWS.format(_CHIPS), "expected the id of a chip in the list"),
            (_ROWS.format(_TWICE), "row 0 for the recorded chips has a chip twice"),
        ],
        also_right=[_ROWS.format(_HYBRID_ROWS)],
    ),
    "crossing_axes": Answer(
        [
            (_CROSSING.format("return names"), "[3, 3]], ('data', 'model')) is ('data', 'model'), expected ('data',)"),
            (
                _CROSSING.format("return [n for d, n in enumerate(names) if np.diff(places, axis=d).any()]"),
                "(list, not tuple)",
            ),
            (
                _CROSSING.format("return tuple(n for d, n in enumerate(names) if np.diff(places, axis=d).sum())"),
                "[0, 1, 1, 0]], ('data', 'model')) is (), expected ('model',)",
            ),
            (_CROSSING.format(_FIRST_LINE), "[2, 2, 2]], ('data', 'model')) is ('data',), expected ('data', 'model')"),
            (
                _CROSSING.format("return tuple(n for d, n in enumerate(names) if places.any(axis=d).any())"),
                "[3, 3]], ('data', 'model')) is ('data', 'model'), expected ('data',)",
            ),
        ],
    ),
}

SAID = {
    ("slices", "places"): ["[(0, 0), (0, 0), (1, 0), (1, 0), (2, 0), (2, 0), (3, 0), (3, 0)]"],
    ("slices", "order"): ["[[0, 0], [1, 1], [2, 2], [3, 3]]", "[[0, 2], [0, 2], [1, 3], [1, 3]]"],
    ("slices", "sent"): ["[('all-reduce', ('model',), 0)]", "[('all-reduce', ('model',), 4096)]"],
    ("slices", "layout"): ["data crosses 2 hosts", "axis 'model' (2) crosses hosts"],
    ("slices", "hybrid"): ["[[0, 0], [1, 1], [2, 2], [3, 3]]"],
    ("slices", "hosts"): ["[[0, 1], [0, 1], [2, 3], [2, 3]]"],
    ("slices", "granule"): ["Number of slices 1 must equal the product of dcn_mesh_shape (4, 1)"],
    ("slices", "product"): ["Number of devices 2 must equal the product of mesh_shape (2, 2)"],
    ("slices", "refused"): ["does not support multi-slice topologies", "create_hybrid_device_mesh"],
    ("slices", "pod"): [
        "[200000, 200001, 200002, 200003, 200007, 200006, 200005, 200004]",
        "[[0, 0, 0, 0, 1, 1, 1, 1], [2, 2, 2, 2, 3, 3, 3, 3]]",
        "[[0, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]]",
    ],
}

"""Answers of the lesson pictures."""

from tests.integration.lessons.book import Answer

_NAMES = '%%mhjax\nnames = {}\nmhnb.teach.check("name_collectives", names)'
_RIGHT = {"A": "all_to_all", "B": "psum", "C": "ppermute", "D": "psum_scatter", "E": "all_gather"}
_TOTAL = '%%mhjax\ndef total(v):\n    return {}\nmhnb.teach.check("sum_in_halves", total)'
_TURN = '%%mhjax\ndef turn(rows):\n    return {}\nmhnb.teach.check("turn_rows", turn)'

ANSWERS = {
    "name_collectives": Answer(
        [
            (
                _NAMES.format(_RIGHT | {"A": "ppermute", "C": "all_to_all"}),
                "A: ppermute leaves 3 4 on device 0 and 1 2 on device 1, expected 1 3 on device 0 and 2 4 on device 1",
            ),
            (
                _NAMES.format(_RIGHT | {"D": "psum"}),
                "D: psum leaves 4 6 on device 0 and 4 6 on device 1, expected 4 on device 0 and 6 on device 1",
            ),
            (_NAMES.format(_RIGHT | {"B": "all_reduce"}), "B is 'all_reduce', expected one of all_gather, all_to_all"),
            (_NAMES.format({"A": "all_to_all"}), "the list of letters is ['A']"),
            (_NAMES.format(list(_RIGHT.values())), "names is a list, expected a dict from letters to names"),
        ],
    ),
    "sum_in_halves": Answer(
        [
            (_TOTAL.format('lax.psum(v, "i")'), "the program has 1 all-reduce, expected none"),
            (
                _TOTAL.format('lax.all_gather(v, "i").sum(axis=0)'),
                "in a ring, a device sends 448 bytes, expected at most 112",
            ),
            (
                _TOTAL.format('lax.psum_scatter(v, "i", tiled=True)'),
                "total(v) has shape (2,) per device, expected (16,)",
            ),
            (
                _TOTAL.format('lax.all_gather(lax.psum_scatter(v, "i", tiled=True), "i")'),
                "total(v) has shape (8, 2) per device, expected (16,)",
            ),
        ],
        also_right=[
            _TOTAL.format(
                'lax.all_gather(lax.all_to_all(v.reshape(8, 2), "i", 0, 0).sum(axis=0), "i", tiled=True)',
            ),
        ],
    ),
    "turn_rows": Answer(
        [
            (_TURN.format("rows.T"), "turn(rows) has shape (16, 2) per device, expected (2, 16)"),
            (
                _TURN.format('lax.all_to_all(rows, "i", split_axis=1, concat_axis=0, tiled=True)'),
                "turn(rows) has shape (16, 2) per device, expected (2, 16)",
            ),
            (
                _TURN.format('lax.all_to_all(rows, "i", split_axis=1, concat_axis=1, tiled=True)'),
                "turn(rows) on device",
            ),
            (
                _TURN.format(
                    'lax.dynamic_slice_in_dim(lax.all_gather(rows, "i", tiled=True).T, 2 * lax.axis_index("i"), 2)'
                ),
                "the program has 1 all-gather, expected none",
            ),
        ],
    ),
}

SAID = {
    ("pictures", "numbers"): ["0 1 2 3", "30 31 32 33"],
    ("pictures", "all-reduce"): ["60 64 68 72"],
    ("pictures", "all-gather"): ["0 10 20 30"],
    ("pictures", "tiled"): ["(16,)", "(4, 4)"],
    ("pictures", "reveal-scattered_sums"): ["it is [60, 64, 68, 72]"],
    ("pictures", "all-to-all"): ["3 13 23 33"],
    ("pictures", "keywords"): ["from (2, 4) to (8, 1)"],
    ("pictures", "permute"): ["30 31 32 33"],
    ("pictures", "reveal-no_sender"): ["it is [0, 0, 0, 0]"],
    ("pictures", "cost"): [
        "all-reduce",
        "16 B",
        "If done in rings, a device sends 24 B in all, 24 B of it to another host.",
    ],
    ("pictures", "costs"): [
        "all-reduce: contributes 16 B, sends 24 B",
        "all-gather: contributes 4 B, sends 12 B",
        "reduce-scatter: contributes 16 B, sends 12 B",
        "all-to-all: contributes 16 B, sends 12 B",
        "permute: contributes 16 B, sends 16 B",
    ],
    ("pictures", "three"): ["ValueError", "has to be divisible"],
}

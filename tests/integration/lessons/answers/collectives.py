"""Answers of the lesson collectives."""

from tests.integration.lessons.book import Answer

_VARIANCE = "%%mhjax\ndef variance(x):\n    return {}\nmhnb.teach.check('variance_in_one', variance)"
_INSIDE = "%%mhjax\nmhnb.teach.check('stay_inside', {}, {})"

ANSWERS = {
    "variance_in_one": Answer(
        [
            (_VARIANCE.format("((x - x.mean()) ** 2).mean()"), "the program has 2 all-reduce, expected at most 1"),
            (_VARIANCE.format("(x * x).mean() - x.mean()"), "the mean of the squares minus the square of the mean"),
            (
                _VARIANCE.format("(x * x).sum(axis=0).mean() / 8 - (x.sum(axis=0).sum() / x.size) ** 2"),
                "bytes, expected at most 8",
            ),
            (_VARIANCE.format("x.std()"), "expected"),
        ],
    ),
    "stay_inside": Answer(
        [
            (_INSIDE.format("P('data', None)", "P('data', None)"), "a device holds 32768 bytes of x"),
            (_INSIDE.format("P(('data', 'model'), None)", "P()"), "a device holds 32768 bytes of w"),
            (
                _INSIDE.format("P(('data', 'model'), None)", "P('data', None)"),
                "bytes for other hosts, expected at most 0",
            ),
            (_INSIDE.format("P('data', 'modle')", "P('model')"), "does not fit float32[256, 128] on this mesh"),
            (_INSIDE.format("('data', 'model')", "P('model')"), "x_spec is a tuple, expected a PartitionSpec"),
        ],
    ),
}

SAID = {
    ("collectives", "sum"): ["model (inside) 1 4 B 0 B", "data (hosts) 1 4 B 3 B"],
    ("collectives", "cross-columns"): ["model (inside)", "8 B 0 B"],
    ("collectives", "cross-rows"): ["data (hosts)"],
    ("collectives", "reveal-rows_times_whole"): ["it is 0"],
    ("collectives", "kinds"): ["columns @ split · [('all-reduce', 65536)]", "rows @ split · [('all-gather', 8192)]"],
    ("collectives", "compare"): [
        "data parallel: 32768 bytes sent by a device, 24576 to other hosts",
        "model inside a host: 16384 bytes sent by a device, 12288 to other hosts",
        "model over hosts: 8192 bytes sent by a device, 0 to other hosts",
    ],
    ("collectives", "apart"): ["2016.0 85344.0"],
    ("collectives", "together"): ["[2016.0, 85344.0]", "data (hosts) 1 8 B 6 B"],
    ("collectives", "refused"): ["is not a function but"],
}

"""Answers of the lesson collectives."""

from tests.integration.lessons.book import Answer

_VARIANCE = "%%mhjax\ndef variance(x):\n    return {}\nmhnb.teach.check('variance_in_one', variance)"
_INSIDE = "%%mhjax\nmhnb.teach.check('stay_inside', {}, {})"

ANSWERS = {
    "variance_in_one": Answer(
        [
            (_VARIANCE.format("((x - x.mean()) ** 2).mean()"), "the program has 2 all-reduce, expected at most 1"),
            (
                _VARIANCE.format("(x * x).mean() - x.mean()"),
                "variance(x) is 6.34375, expected 5.95874, the variance of all elements",
            ),
            (
                _VARIANCE.format("(x * x).sum(axis=0).mean() / 8 - (x.sum(axis=0).sum() / x.size) ** 2"),
                "bytes, expected at most 8",
            ),
            (_VARIANCE.format("x.std()"), "variance(x) is 2.44105, expected 5.95874"),
            (_VARIANCE.format("x.var(ddof=1)"), "The variance is the mean of (x - m)²"),
        ],
    ),
    "stay_inside": Answer(
        [
            (_INSIDE.format("P('data', None)", "P('data', None)"), "a device holds 32768 bytes of x"),
            (_INSIDE.format("P(('data', 'model'), None)", "P()"), "a device holds 32768 bytes of w"),
            (_INSIDE.format("P()", "P('model', None)"), "x has 128 KiB in all"),
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
    ("collectives", "cross-rows"): ["data (hosts)", "16 B 12 B"],
    ("collectives", "reveal-rows_times_whole"): ["it is 0"],
    ("collectives", "kinds"): ["columns @ split · [('all-reduce', 65536)]", "rows @ split · [('all-gather', 8192)]"],
    ("collectives", "accounts"): [
        "64.0 KiB 48.0 KiB",
        "8.0 KiB 8.0 KiB",
        "If done in rings, a device sends 96.0 KiB in all, 96.0 KiB of it to another host.",
        "If done in rings, a device sends 24.0 KiB in all, 24.0 KiB of it to another host.",
    ],
    ("collectives", "hidden"): ["all-gather f32[512,128] 65536", "all-gather f32[512,1024] 524288"],
    ("collectives", "constraint"): ["all-gather f32[128,1024] 131072", "all-gather f32[1024,128] 131072"],
    ("collectives", "compare"): [
        "data parallel: contributes 32768 bytes, 24576 for other hosts; holds 57344",
        "model inside a host: contributes 16384 bytes, 12288 for other hosts; holds 57344",
        "model over hosts: contributes 8192 bytes, 0 for other hosts; holds 81920",
    ],
    ("collectives", "apart"): ["2016.0 85344.0"],
    ("collectives", "together"): ["[2016.0, 85344.0]", "data (hosts) 1 8 B 6 B"],
    ("collectives", "refused"): ["is not a function but"],
}

"""Answers of the lesson capstone."""

from tests.integration.lessons.book import Answer

_RECORDS = (
    "%%mhjax\ndef records_of(step, n_records, n_batch, order):\n    n = n_batch // jax.process_count()\n"
    "    first = step * n_batch + {} * n\n    return {}\nmhnb.teach.check('records_of', records_of)"
)
_PLACES = "[order({})[p % n_records] for p in range(first, first + {})]"
_DROPPING = (
    "%%mhjax\ndef records_of(step, n_records, n_batch, order):\n    epoch, at = divmod(step, n_records // n_batch)\n"
    "    batch = order(epoch)[at * n_batch : (at + 1) * n_batch]\n"
    "    return np.split(batch, jax.process_count())[jax.process_index()]\n"
    "mhnb.teach.check('records_of', records_of)"
)
_MOMENT = (
    "%%mhjax\ndef moment_spec(spec, shape, n_data):\n"
    "    names = [*spec, *[None] * (len(shape) - len(spec))]\n    {}\n"
    "mhnb.teach.check('moment_spec', moment_spec)"
)
_NEEDED = "%%mhjax\nmhnb.teach.check('needed', lambda run: {})"
_RESUME = (
    "%%mhjax\ndef resume_step(names):\n    steps = [int(name) for name in names if name.isdigit()]\n    {}\n"
    "mhnb.teach.check('resume_step', resume_step)"
)
_SEND = "int(multihost_utils.broadcast_one_to_all(np.array({})))"
_FIRST = (
    "def first_difference(a, b):\n    differs = {}\n    return int(differs.argmax()) if differs.any() else None\n"
    "mhnb.teach.check('first_difference', first_difference)"
)

ANSWERS = {
    "records_of": Answer(
        [
            (
                _RECORDS.format("0", _PLACES.format("p // n_records", "n_batch")),
                "this process reads 16 records, expected 4, its part",
            ),
            (_RECORDS.format("0", _PLACES.format("p // n_records", "n")), "the records of process 0 in step 1"),
            (
                _RECORDS.format("jax.process_index()", _PLACES.format("0", "n")),
                "for step 4 this process reads the records",
            ),
            (_DROPPING, "this process reads the records"),
            (
                _RECORDS.format("jax.process_index()", "order(first // n_records)[first % n_records :][:n]"),
                "19.1 records_of on ranks 2-3 · right on ranks 0-1",
            ),
            (
                _RECORDS.format("jax.process_index()", "np.concatenate([order(0), order(1)])[first : first + n]"),
                "for step 7 this process reads",
            ),
        ],
    ),
    "moment_spec": Answer(
        [
            (_MOMENT.format("return jax.P('data')"), "which does not fit"),
            (
                _MOMENT.format(
                    "return jax.P(*['data' if s % n_data == 0 and n is None else n for n, s in zip(names, shape)])"
                ),
                "which does not fit",
            ),
            (
                _MOMENT.format(
                    "fits = [d for d, s in enumerate(shape) if s % n_data == 0]\n"
                    "    return jax.P(*['data' if fits[:1] == [d] else None for d in range(len(shape))])"
                ),
                "'model' alone on dim 3, as in the parameter",
            ),
            (
                _MOMENT.format("return jax.P('data', *names[1:]) if shape and shape[0] % n_data == 0 else spec"),
                "bytes per device, expected at most",
            ),
            (_MOMENT.format("return names"), "is a list, expected a PartitionSpec"),
        ],
    ),
    "needed": Answer(
        [
            (_NEEDED.format("{n: x for n, x in run.items() if n != 'gradient'}"), "Saved too: tokens, loss"),
            (
                _NEEDED.format("{'weights': run['weights'], 'position': run['position']}"),
                "the checkpoint has no velocity",
            ),
            (
                _NEEDED.format("{'weights': run['weights'], 'velocity': run['velocity']}"),
                "train on the first tokens again",
            ),
            (
                _NEEDED.format("{n: run[n].astype('bfloat16') for n in ('weights', 'velocity', 'position')}"),
                "weights is another array, bfloat16",
            ),
        ],
    ),
    "resume_step": Answer(
        [
            (_RESUME.format("return max(steps, default=0)"), "if only process 0 sees 12, is 8, expected 12"),
            (
                _RESUME.format("return int(multihost_utils.process_allgather(np.array(max(steps, default=0))).max())"),
                "if only the others see 12, is 12, expected 8",
            ),
            (
                _RESUME.format(
                    "newest = max((name for name in names if name.isdigit()), default='0')\n    return "
                    + _SEND.format("int(newest)")
                ),
                "if all see 96 and 104, is 96, expected 104",
            ),
            (
                _RESUME.format(
                    "steps = [int(name.partition('.')[0]) for name in names]\n    return "
                    + _SEND.format("max(steps, default=0)")
                ),
                "a temporary 12, is 12, expected 8",
            ),
        ],
    ),
    "first_difference": Answer(
        [
            (_FIRST.format("~np.isclose(a, b)"), "the last bit of step 3 is None, expected 3"),
            (_FIRST.format("a != b"), "nan in both from step 2 on is 2, expected None"),
            (
                _FIRST.format("(a != b) & ~(np.isnan(a) & np.isnan(b))"),
                "equal numbers with other bits is None, expected 0",
            ),
            (_FIRST.format("abs(a - b) > 0"), "nan in one of them from step 2 on is None, expected 2"),
            (
                _FIRST.format("a.view(np.int32) != b.view(np.int32)").replace(
                    "int(differs.argmax())", "int(np.flatnonzero(differs)[-1])"
                ),
                "nan in one of them from step 2 on is 4, expected 2",
            ),
        ],
    ),
}

SAID = {
    ("capstone", "run"): ["begin at 0", "step 12 loss "],
    ("capstone", "export"): ["train.py", "train.sbatch"],
    ("capstone", "trace"): ["over data", "over model"],
    ("capstone", "kill"): ["step 14 loss ", "SIGKILL"],
    ("capstone", "resumed"): ["begin at 12"],
    ("capstone", "reveal-never_trained"): ["it is 64"],
    ("capstone", "reveal-first_copies"): ["it is 1"],
    ("capstone", "written"): ["ocdbt.process_0", "ocdbt.process_3"],
    ("capstone", "other"): ["begin at 12"],
    ("capstone", "bound"): ["within 100 epsilon: True"],
    ("capstone", "stopped"): ["killed after step 9", "[-9, -9]"],
    ("capstone", "again"): ["step 15 loss ", "same bits as in the notebook: True"],
}

ALIKE = [
    ("capstone", r"^.*step 13 loss ([0-9.]+)$", ("kill", "resumed")),
    ("capstone", r"^.*step 14 loss ([0-9.]+)$", ("kill", "resumed")),
]

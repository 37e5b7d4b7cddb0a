"""Answers of the lesson srun."""

from tests.integration.lessons.book import Answer

_LEAVE = "source = {!r}\nmhnb.teach.check('can_leave', source)"
_ARGUMENTS = "def arguments(environ):\n    {}\nmhnb.teach.check('from_environment', arguments)"
_DICT = (
    "return {{'coordinator_address': {address}, 'num_processes': {count}, 'process_id': {number}}}"
    " if 'RANK' in environ else {{}}"
)
_ADDRESS = "environ['MASTER_ADDR'] + ':' + environ['MASTER_PORT']"
_COUNT, _NUMBER = "int(environ['WORLD_SIZE'])", "int(environ['RANK'])"

ANSWERS = {
    "can_leave": Answer(
        [
            (_LEAVE.format("%time total = sum(range(10))\n!echo 45"), "line 2: !echo 45: a shell command"),
            (_LEAVE.format("print(await total())"), "await at top level"),
            (_LEAVE.format("import mhnb\nprint(sum(range(10)))"), "import mhnb: the script runs without mhnb"),
            (_LEAVE.format("print(sum(range(11)))"), "its output is '55"),
            (_LEAVE.format("import os\nos.system('echo 45')"), "prints the value of a cell's last line"),
            (_LEAVE.format("print(total)"), "the script ends with NameError"),
            ("source = 45\nmhnb.teach.check('can_leave', source)", "source is an int, expected the text of a cell"),
        ],
    ),
    "from_environment": Answer(
        [
            (
                _ARGUMENTS.format(_DICT.format(address=_ADDRESS, count="environ['WORLD_SIZE']", number=_NUMBER)),
                "num_processes for RANK=0 is '4' (str, not int), expected 4",
            ),
            (
                _ARGUMENTS.format(_DICT.format(address="environ['MASTER_ADDR']", count=_COUNT, number=_NUMBER)),
                "coordinator_address for RANK=0 is 'node7', expected 'node7:1234'",
            ),
            (
                _ARGUMENTS.format(_DICT.format(address=_ADDRESS, count=_COUNT, number="0")),
                "process_id for RANK=3 is 0, expected 3",
            ),
            (_ARGUMENTS.format("return {}"), "All four variables are in environ here"),
            (
                _ARGUMENTS.format(_DICT.format(address=_ADDRESS, count=_COUNT, number=_NUMBER).partition(" if ")[0]),
                "KeyError",
            ),
        ],
    ),
}

SAID = {
    ("srun", "train"): ["has loss 3.7820"],
    ("srun", "export"): ["left out · In [6]: raised NameError on ranks 0-1", "note · In [5] runs on rank 0 only"],
    ("srun", "read"): ["rate = 0.25", "if jax.process_index() == 0:"],
    ("srun", "plain"): [f"process {rank} has loss 3.7820" for rank in range(2)] + ["log: loss 3.7820"],
    ("srun", "reveal-who_logs"): ["it is 1"],
    ("srun", "slurm"): ["srun --label"],
    ("srun", "devices"): ["cpu 4 devices in each of 2 processes"],
    ("srun", "log"): ["log: loss 3.7820"],
    ("srun", "typo"): ["NameError", "best_loss"],
    ("srun", "head"): ["jax.distributed.initialize()"],
}

"""`mhnb run`: runs a script on every rank, as from a shell."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mhnb.cli.run_script import exit_status, to_script_result
from mhnb.core.output.results import CellResult, RankResult
from mhnb.types import RankError

SCRIPT = """\
import os, sys
import jax
import beside

print(jax.process_index(), "of", jax.process_count(), sys.argv[1:], os.path.basename(__file__), __name__, beside.word)
def fail():
    raise ValueError("no")
if sys.argv[1] == "fails":
    fail()
if sys.argv[1] == "other":
    mesh = jax.make_mesh((2,), ("a",))
    x = jax.device_put(jax.numpy.ones(2), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a")))
    float(x.sum() if jax.process_index() else x.max())
if __name__ == "__main__":
    class End(SystemExit): pass
    if sys.argv[1] == "own":
        raise End(6)
    sys.exit({"0": 0, "3": 3, "word": "0"}[sys.argv[1]])
sys.argv
"""
DISTRIBUTED_SCRIPT = """\
import jax
from jax.experimental import multihost_utils

def main():
    jax.distributed.initialize()
    print("the sum is", multihost_utils.process_allgather(jax.process_index()).sum())
    jax.distributed.shutdown()

if __name__ == "__main__":
    main()
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("argument", "status", "expected"),
    [
        ("0", 0, ""),
        ("3", 3, "SystemExit: 3"),
        ("word", 1, "SystemExit: 0"),
        ("own", 6, "End: 6"),
        ("fails", 1, "File lib/script.py:7, in fail()"),
        ("other", 1, "launch 2 of lib/script.py differs"),
    ],
)
def test_script_runs_as_under_python(
    tmp_path: Path, leftovers: None, argument: str, status: int, expected: str
) -> None:
    """A script has its arguments, name, folder and exit status as under Python, and an error names the script's own line."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "script.py").write_text(SCRIPT)
    (tmp_path / "lib" / "beside.py").write_text("word = 'beside it'")
    command = [sys.executable, "-m", "mhnb", "run", "lib/script.py", "-n", "2", "--devices", "1", "--", argument, "-n"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=100)
    assert done.returncode == status, done.stderr
    assert f"‹rank› of 2 ['{argument}', '-n'] script.py __main__ beside it" in done.stdout
    assert expected in done.stdout
    assert "ell 2" not in done.stdout
    assert "In[" not in done.stdout
    assert ("SystemExit" in done.stdout) == (argument in ("3", "word"))
    assert "a cell cannot end" not in done.stdout
    assert done.stderr == ("" if status == 0 else "lib/script.py: failed on ranks 0-1\n")


def test_script_with_initialize_and_shutdown_runs(tmp_path: Path, leftovers: None) -> None:
    """A script may begin with `initialize` and end with `shutdown`, as outside mhnb.

    What it does between them is done, and it succeeds.
    """
    (tmp_path / "train.py").write_text(DISTRIBUTED_SCRIPT)
    command = [sys.executable, "-m", "mhnb", "run", "train.py", "-n", "2", "--devices", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the sum is 1" in done.stdout
    assert done.stdout.count("jax.distributed.shutdown() was ignored") == 1


@pytest.mark.test_all
def test_script_is_interrupted_at_its_limit(tmp_path: Path, leftovers: None) -> None:
    """With --timeout a script is interrupted after that time, and the exit status is that of `timeout`.

    The options come before the script, whose own --timeout is its argument; the cluster has the name and the guard of the options.
    """
    (tmp_path / "slow.py").write_text(
        "import os, sys, threading\nprint(sys.argv[1:], os.environ['MHNB_SUPERVISOR'].count('slow.'), flush=True)\n"
        "threading.Event().wait()\n"
    )
    options = ["--timeout", "2", "--guard", "after", "--name", "slow", "-n", "2", "--devices", "1"]
    command = [sys.executable, "-m", "mhnb", "run", *options, "slow.py", "--timeout", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=100)
    assert done.returncode == 124, done.stderr
    assert "['--timeout', '7'] 1" in done.stdout
    assert done.stderr == "slow.py: failed on ranks 0-1, after the limit of 2 s\n"


def result_of_exits(*words: str | None) -> CellResult:
    """Return a result of ranks that ended by `sys.exit` with these words; None for a rank that ran to its end."""
    ranks = [
        RankResult(rank, "ok")
        if word is None
        else RankResult(
            rank, "error", error=RankError("SystemExit", f"{word} · it goes on", (f"SystemExit: {word}", "it goes on"))
        )
        for rank, word in enumerate(words)
    ]
    return CellResult(2, "", tuple(ranks), 0.1, process_count=len(ranks))


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ((None, None), 0),
        (("False", "None", "0"), 0),
        ((None, "0"), 0),
        ((None, "3"), 3),
        (("-1", "-1"), 255),
        (("'something is missing'", None), 1),
        (("'0'", "0"), 1),
        (("'3'",), 1),
        (("''",), 1),
        (("Code(3)",), 1),
        (("{[1]: 2}",), 1),
    ],
)
def test_exit_status_is_that_of_one_process(words: tuple[str | None, ...], status: int) -> None:
    """The exit status is that of one process: a number, or 1 with a message."""
    assert exit_status(result_of_exits(*words)) == status


def test_interrupted_script_has_its_own_status() -> None:
    """An interrupted script exits with 130, which ends a shell's loop, unless it has a status of its own."""
    stopped = RankResult(0, "interrupted", error=RankError("KeyboardInterrupt", "", ()))
    assert exit_status(replace(result_of_exits(None), ranks=(stopped,), how="interrupted")) == 130
    assert exit_status(replace(result_of_exits("3"), how="interrupted")) == 3
    assert exit_status(replace(result_of_exits(None), ranks=(stopped,), how="timeout")) == 124


def test_notes_of_a_tainted_cluster_are_shown() -> None:
    """A tainted cluster's notes are shown even if every rank ended by `sys.exit(0)`.

    There is no note if only some ranks called `sys.exit(0)`.
    """
    tainted = replace(result_of_exits("0", "0"), state="tainted", notes=("later values could be wrong",))
    assert to_script_result(tainted, "a.py").notes == ("later values could be wrong",)
    assert (
        to_script_result(replace(result_of_exits("0", None), notes=("rank 0 raised SystemExit",)), "a.py").notes == ()
    )


def test_errors_name_the_script() -> None:
    """An error names the script in its message and in its frames."""
    error = RankError(
        "SyntaxError", "invalid syntax (<cell 2>, line 3)", ("\x1b[36mCell\x1b[39m 2, line 3", "in <cell 2>:3")
    )
    (rank,) = to_script_result(CellResult(2, "", (RankResult(0, "error", error=error),), 0.1), "a.py").ranks
    assert rank.error is not None
    assert (rank.error.evalue, rank.error.traceback) == (
        "invalid syntax (a.py, line 3)",
        ("\x1b[36mFile a.py:3", "in a.py:3"),
    )

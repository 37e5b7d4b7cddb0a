"""`%mhjax VERB`: what each says, binds and refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from mhnb.cluster import manager
from mhnb.cluster.cluster import Cluster
from mhnb.core.output.results import CellResult
from mhnb.errors import CellInterrupted
from mhnb.magics.commands import COMMANDS
from tests.integration.notebook.conftest import Session


def test_start_twice_is_one_line(nb: Session, cluster: Cluster) -> None:
    """The same shape goes on with what is there, and says so: Run All twice works."""
    said = nb.run("%mhjax start -n 2 --devices 2")
    assert said.out == "mhjax · 2 hosts x 2 devices run already (clean); going on\n"
    assert manager.current() is cluster


@pytest.mark.parametrize("flags", ["-n 1 --devices 2", "-n 2 --devices 1", "-n 2 --devices 2 --no-init"])
def test_another_shape_names_the_ways_out(nb: Session, cluster: Cluster, flags: str) -> None:
    """Both shapes are in the error, restart and stop too, and nothing is lost."""
    said = nb.try_(f"%mhjax start {flags}")
    assert type(said.error).__name__ == "AlreadyStarted"
    assert all(word in said.text for word in ("%mhjax restart", "%mhjax stop", "--name"))
    ran, asked = str(said.error).partition(", and ")[::2]
    assert "2 hosts x 2 devices" in ran
    assert not asked.startswith("2 hosts x 2 devices was")
    assert manager.current() is cluster


def test_a_start_without_flags_beside_another_shape_says_what_it_asked_for(nb: Session) -> None:
    """Who typed no shape is told where the one in the error comes from."""
    said = str(nb.try_("%mhjax start").error)
    assert "and 4 hosts x 2 devices was asked for (a start that names no shape asks for that, too)\n" in said


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--guard off", "guard is 'lockstep', and 'off' was asked for"),
        ("--keep", "keep is False, and True was asked for"),
    ],
)
def test_another_flag_is_not_ignored(nb: Session, cluster: Cluster, flag: str, said: str) -> None:
    """The cluster that runs was started without it: what differs is said with the ways out, and nothing is lost."""
    refused = nb.try_(f"%mhjax start -n 2 --devices 2 {flag}")
    assert type(refused.error).__name__ == "AlreadyStarted"
    assert all(word in refused.text for word in (said, "%mhjax restart keeps", "%mhjax stop default", "--name"))
    assert manager.current() is cluster


@pytest.mark.parametrize(
    "flags", ["-n 2 --devices 2 --per-host 0", "-n 2 --devices 0", "-n 2 --devices 2 --per-host -1"]
)
def test_a_number_that_cannot_be_while_a_cluster_runs(nb: Session, cluster: Cluster, flags: str) -> None:
    """It is refused as what it is, not as another shape."""
    said = nb.refuse(f"%mhjax start {flags}")
    assert "give" in said
    assert "from 1" in said
    assert manager.current() is cluster


@pytest.mark.parametrize(
    ("line", "said"),
    [("-n 0", "from 1 to"), ("-n 1000", "from 1 to"), ("-n x", "expected a whole number, as 4, and got 'x'")],
)
def test_a_start_that_cannot_be(nb: Session, line: str, said: str) -> None:
    """A count that cannot be is a usage error."""
    assert said in nb.refuse(f"%mhjax start {line} --name other")


def test_status_shows_each_process(nb: Session, cluster: Cluster) -> None:
    """Every rank with its process id and log, and the state."""
    said = nb.run("%mhjax status").out
    assert said.startswith("default · clean · generation ")
    for rank in cluster.ranks:
        assert f"host{rank.rank}  {rank.pid}  alive" in said
        assert str(rank.log_path) in said


def test_status_warns_of_a_backend_in_the_notebook() -> None:
    """Devices of the notebook's own JAX are not the ranks': status says so, and mhnb itself never makes them."""
    code = """
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    for line in ("%load_ext mhnb", "%mhjax start -n 1 --devices 1", "%mhjax status", "print('-' * 9)",
                 "import jax; jax.devices()", "%mhjax status"):
        assert shell.run_cell(line).success
    """
    lines = "\n".join(line.removeprefix("    ") for line in code.splitlines())
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True, env=environment)
    before, after = done.stdout.split("-" * 9)
    assert "initialised JAX too" not in before
    assert "this notebook's own process has initialised JAX too" in after


def test_vars_lists_what_the_ranks_hold(nb: Session) -> None:
    """Name, kind, shape, and where the ranks differ."""
    nb.run("%%mhjax\nimport jax.numpy as jnp\nlisted = jnp.arange(6.0)\nuneven = me")
    said = nb.run("%mhjax vars").out
    assert any(line.split() == ["listed", "local", "Array", "f32[6]", "24", "B"] for line in said.splitlines())
    assert any(line.startswith("uneven") and "on rank 1" in line for line in said.splitlines())


def test_pull_binds_here(nb: Session) -> None:
    """Several names at once, each bound under its own."""
    nb.run("%%mhjax\nimport numpy as np\npulled, text = np.arange(3), 'word'")
    assert nb.run("%mhjax pull pulled text").out == "pulled · int64[3], 24 B\ntext · str\n"
    np.testing.assert_array_equal(nb.run("pulled").value, [0, 1, 2])
    # Alone it shows nothing more, wherever it stands; what is assigned is the value.
    assert nb.run("%mhjax pull text").value is None
    assert "word" not in nb.run("%mhjax pull text\n1").out
    for code, value in (
        ("text = %mhjax pull text\ntext", "word"),
        ("mine = %mhjax pull text\nmine", "word"),
        ("both = %mhjax pull text pulled\n(both[0], both[1].tolist())", ("word", [0, 1, 2])),
        ("each = %mhjax pull text --each\neach", ["word", "word"]),
        ("get_ipython().run_line_magic('mhjax', 'pull text').upper()", "WORD"),
        ("def fetch():\n    return get_ipython().run_line_magic('mhjax', 'pull text')\nfetch()", "word"),
    ):
        assert nb.run(code).value == value
    for shown_alone in ("%time %mhjax pull text", "%%time\n%mhjax pull text", "%mhjax pull text"):
        assert nb.run(shown_alone).value is None
    assert nb.run("text").value == "word"


def test_pull_of_a_missing_name_says_where(nb: Session) -> None:
    """A name that only some ranks have is an error that names the others."""
    nb.run("%%mhjax --ranks 0\nhalf = 1")
    assert "half is missing on rank 1, not on rank 0" in nb.try_("%mhjax pull half").text
    assert "nowhere does not exist on ranks 0-1" in nb.try_("%mhjax pull nowhere").text


def test_pull_of_a_value_that_differs_offers_both_ways(nb: Session) -> None:
    """Which rank holds what is in the error; `--ranks` and `--each` do what it says."""
    said = nb.try_("%mhjax pull me").text
    assert "0 on rank 0, 1 on rank 1" in said
    assert "Traceback" not in said
    assert "--ranks 1" in said
    nb.run("%mhjax pull me --ranks 1")
    assert nb.run("me").value == 1
    nb.run("%mhjax pull me --each")
    assert nb.run("me").value == [0, 1]


def test_push_binds_on_the_ranks(nb: Session) -> None:
    """The same host value everywhere, or on those that were named."""
    nb.run("pushed, some = {'a': [1, 2]}, 3")
    assert nb.run("%mhjax push pushed").out == "pushed · dict · on ranks 0-1\n"
    assert "{'a': [1, 2]}" in nb.run("%%mhjax\npushed").out
    assert nb.run("%mhjax push some --ranks 1").out.endswith(" · on rank 1\n")
    assert "rank 0 │ False\nrank 1 │ True" in nb.run("%%mhjax\n'some' in globals()").out


def test_push_of_an_undefined_name_is_refused(nb: Session) -> None:
    """Nothing is pushed, not even the names that exist."""
    nb.run("defined_here = 1")
    assert "this notebook has no undefined_here" in nb.refuse("%mhjax push defined_here undefined_here")
    assert "False" in nb.run("%%mhjax\n'defined_here' in globals()").out


def test_interrupt_ends_the_cell_that_runs(nb: Session, cluster: Cluster) -> None:
    """From another thread, as a second front end would; without a running cell it says so."""
    assert nb.run("%mhjax interrupt").out == "mhjax · no cell runs: nothing to interrupt\n"
    submission = cluster.submit("import time\nprint('in it', flush=True)\nwhile True: time.sleep(0.01)", live=True)
    while not any("in it" in rank.stdout for rank in submission.updates.get(timeout=30)):  # type: ignore[union-attr]
        pass
    assert nb.run("%mhjax interrupt").out == "mhjax · the cell that runs is being interrupted\n"
    with pytest.raises(CellInterrupted):
        cluster.follow(submission).check()


def test_an_interrupt_while_the_view_draws_reaches_the_ranks(nb: Session, cluster: Cluster) -> None:
    """Ctrl-C at any moment of a cell ends it on the ranks: none goes on unwatched."""
    submission = cluster.submit("import time\nprint('in it', flush=True)\nwhile True: time.sleep(0.01)", live=True)

    def draw(_: CellResult) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(CellInterrupted):
        cluster.follow(submission, draw).check()


def test_an_interrupt_of_a_cell_that_waits_leaves_the_one_that_runs(
    nb: Session, cluster: Cluster, tmp_path: Path
) -> None:
    """Ctrl-C stops what its user waits for, not another thread's cell."""
    flag = tmp_path / "interrupted"
    waits = f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.05)\nran = 'to its end'"
    running = cluster.submit(waits)

    def press() -> None:
        while len(cluster._event_loop._submissions) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(CellInterrupted, match="before the cell's turn"):
        cluster.run("ran = 'never'")
    flag.touch()
    assert cluster.follow(running).ok
    assert "to its end" in nb.run("%%mhjax\nran").out


def test_a_cell_waits_for_its_turn(nb: Session, cluster: Cluster) -> None:
    """A magic cell that comes while another thread's cell runs is run after it."""
    submission = cluster.submit("import time; time.sleep(0.2); turns = ['first']")
    assert "['first', 'second']" in nb.run("%%mhjax\nturns.append('second'); turns").out
    assert cluster.follow(submission).ok


def test_list_names_each_cluster(nb: Session, cluster: Cluster) -> None:
    """One line a cluster: name, shape, state, generation."""
    assert nb.run("%mhjax list").out == f"default  2 hosts x 2 devices  clean  generation {cluster.generation}\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "VERB is one of accept, attach, auto"),
        ("bogus", "there is no such verb; choose one of accept"),
        ("strat -n 2", "there is no such verb; did you mean start? Else choose one of accept"),
        ("--ranks 0", "there is no such verb; %%mhjax takes flags; choose one of accept"),
        ("start --bogus", "unrecognized arguments: --bogus; %mhjax start --help"),
        ("start --devcies 2", "unrecognized arguments: --devcies 2 (did you mean --devices?); %mhjax start --help"),
        ("status extra", "unrecognized arguments: extra"),
        ("auto maybe", "choose from"),
        ("pull", "the following arguments are required"),
        ("pull x --ranks 9", "there is no rank 9"),
        ("pull not-a-name", "not-a-name"),
        ("pull params['a b']", "takes names of variables, not \"params['a b']\""),
        ("push params['w']", "takes names of variables, not \"params['w']\""),
        ("push x --each", "unrecognized arguments: --each"),
        ("stop nobody", "there is no cluster 'nobody' here; there are default"),
        ("pull 'open", "has a quote that is not closed"),
        ("start --hosts a,b[", "is not a machine's name"),
        ("start --hosts 4", "--hosts 4: give names of machines, like --hosts a,b; -n 4 says how many hosts"),
        ("start --profile nowhere", "there is no such profile"),
        ("start --set partition", "write NAME=VALUE"),
        ("start --partition x", "partition is a setting of the profile slurm"),
        ("start -n 4 --per-host 3", "-n 4 ranks cannot be 1 hosts"),
        ("restart --to 3", "--to 3 belongs to a replay"),
        ("restart --replay --to 999", "--to 999: the journal has"),
        ("restart --replay --to x", "expected a whole number"),
    ],
)
def test_a_bad_verb_or_flag_changes_nothing(nb: Session, line: str, said: str) -> None:
    """It is a UsageError of one line that says what fits, and the ranks hear nothing."""
    nb.run("x = 1")
    assert said in nb.refuse(f"%mhjax {line}")


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_each_verb_has_help(idle: Session, verb: str) -> None:
    """`--help` prints the flags and runs nothing."""
    said = idle.run(f"%mhjax {verb} --help").out
    assert said.startswith(f"%mhjax {verb} [-h]")
    assert "--help" in said


def test_help_without_a_verb_lists_the_verbs(idle: Session) -> None:
    """As `--help` does everywhere; nobody knows the verbs at first."""
    for line in ("%mhjax --help", "%mhjax help"):
        assert "where VERB is one of accept, " in idle.run(line).out


def test_where_between_cells(nb: Session) -> None:
    """Between cells no rank is anywhere."""
    assert nb.run("%mhjax where").out == "mhjax · no cell runs\n"


def test_where_from_a_thread(nb: Session, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While a script's other thread is in a cell the verb prints the card."""
    flag = tmp_path / "go"
    source = f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.1)"
    thread = threading.Thread(target=cluster.run, args=(source,))
    thread.start()
    try:
        end = time.monotonic() + 30
        while (card := cluster.where()) is None or not card.known:
            assert time.monotonic() < end
            time.sleep(0.05)
        while "ranks 0-1 in sleep" not in (said := nb.run("%mhjax where").out):
            assert time.monotonic() < end, said
    finally:
        flag.touch()
        thread.join()
    assert "ranks 0-1 in sleep, line 2:  while not os.path.exists" in said
    assert "mhnb where default" in said


@pytest.mark.requires_part("mpi")
def test_doctor_takes_the_flags_of_a_start(idle: Session) -> None:
    """Where it looks is said as for a start; here, where mpiexec would put the ranks."""
    said = idle.run("%mhjax doctor --profile mpi -n 2 --devices 1 --set extra=--allow-run-as-root")
    assert "preflight · 1 host · all well" in str(said)
    assert "there is no such profile" in idle.refuse("%mhjax doctor --profile nowhere")


def test_doctor_needs_no_cluster(idle: Session) -> None:
    """It looks at this machine and shows the table; that something fails is its answer and no error."""
    said = idle.run("%mhjax doctor --devices 2")
    assert said.out.startswith("preflight · 1 host · ")
    assert "this machine" in said.out
    assert "'a+b' is not a machine's name" in idle.refuse("%mhjax doctor --hosts a+b")


def test_panel_shows_a_result_again(nb: Session) -> None:
    """The last one, or one by its number; a terminal gets text."""
    nb.run("%%mhjax\nprint('first', 'ab'[me])")
    nb.run("%%mhjax --out second\nprint('second')")
    assert "second" in nb.run("%mhjax panel").out
    seq = nb.shell.user_ns["second"].seq - 1
    assert "first a" in nb.run(f"%mhjax panel {seq} --view tabs").out
    nb.run("%mhjax panel off")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("off", "no panel is open"),
        ("first", "the number of a cell"),
        ("99999", "not among the last"),
        ("--view x", "choose"),
    ],
)
def test_panel_refuses_what_is_not_there(nb: Session, line: str, says: str) -> None:
    """With the way out."""
    nb.run("%%mhjax\nprint('said')")
    said = nb.try_(f"%mhjax panel {line}")
    assert type(said.error).__name__ == "UsageError"
    assert says in str(said.error)

"""`%mhjax COMMAND`: the output, the bound variables and the refused arguments of each command."""

from __future__ import annotations

import json
import os
import re
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
from mhnb.magics.commands import build_help, list_names
from mhnb.view.print_text import print_text
from tests.integration.notebook.conftest import Session


def test_second_start_continues_with_one_line(nb: Session, cluster: Cluster) -> None:
    """A second start with the same spec continues with the running cluster and prints one line, so that Run All works twice."""
    outcome = nb.run("%mhjax start -n 2 --devices 2")
    assert outcome.out == "mhjax · 2 hosts x 2 devices already running (clean)\n"
    assert manager.current() is cluster


@pytest.mark.parametrize("flags", ["-n 1 --devices 2", "-n 2 --devices 1", "-n 2 --devices 2 --no-init"])
def test_start_with_other_spec_names_alternatives(nb: Session, cluster: Cluster, flags: str) -> None:
    """A start with another spec fails; the error names both specs, `restart` and `stop`, and the cluster keeps running."""
    outcome = nb.try_(f"%mhjax start {flags}")
    assert type(outcome.error).__name__ == "AlreadyStarted"
    assert all(word in outcome.text for word in ("%mhjax restart", "%mhjax stop", "--name"))
    ran, requested = str(outcome.error).partition("; you requested ")[::2]
    assert "2 hosts x 2 devices" in ran
    assert not requested.startswith("2 hosts x 2 devices\n")
    assert manager.current() is cluster


def test_start_without_a_shape_uses_the_running_cluster(nb: Session, cluster: Cluster) -> None:
    """A start that names no shape uses the running cluster, whatever its shape; other options are still compared."""
    for line in ("%mhjax start", "%mhjax start --guard before"):
        assert nb.run(line).out == "mhjax · 2 hosts x 2 devices already running (clean)\n"
    assert manager.current() is cluster
    assert type(nb.try_("%mhjax start --guard off").error).__name__ == "AlreadyStarted"


@pytest.mark.parametrize("shape", ["2x2", "2×2", "2"])
def test_shape_may_be_one_word(nb: Session, cluster: Cluster, shape: str) -> None:
    """`start 2x2` is `start -n 2 --devices 2`."""
    assert "2 hosts x 2 devices already running" in nb.run(f"%mhjax start {shape}").out
    assert type(nb.try_(f"%mhjax start {shape.replace('2', '3', 1)}").error).__name__ == "AlreadyStarted"


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--guard off", "guard='lockstep', requested guard='off'"),
        ("--keep", "keep=False, requested keep=True"),
    ],
)
def test_start_with_other_flag_is_refused(nb: Session, cluster: Cluster, flag: str, said: str) -> None:
    """A flag that differs from the running cluster is an error with the difference and the alternatives; nothing is lost."""
    refused = nb.try_(f"%mhjax start -n 2 --devices 2 {flag}")
    assert type(refused.error).__name__ == "AlreadyStarted"
    assert all(word in refused.text for word in (said, "%mhjax restart, to keep", "%mhjax stop default", "--name"))
    assert manager.current() is cluster


@pytest.mark.parametrize(
    "flags", ["-n 2 --devices 2 --per-host 0", "-n 2 --devices 0", "-n 2 --devices 2 --per-host -1"]
)
def test_invalid_count_is_refused_while_cluster_runs(nb: Session, cluster: Cluster, flags: str) -> None:
    """While a cluster runs, an invalid count is refused as invalid and not as another spec."""
    error = nb.expect_usage_error(f"%mhjax start {flags}")
    assert "expected" in error
    assert "from 1" in error
    assert manager.current() is cluster


@pytest.mark.parametrize(
    ("line", "said"),
    [("-n 0", "from 1 to"), ("-n 1000", "from 1 to"), ("-n x", "expected a whole number, for example 4; got 'x'")],
)
def test_start_with_invalid_count_is_refused(nb: Session, line: str, said: str) -> None:
    """A start with an invalid count is a usage error."""
    assert said in nb.expect_usage_error(f"%mhjax start {line} --name other")


def test_status_shows_each_process(nb: Session, cluster: Cluster) -> None:
    """`%mhjax status` shows the state of the cluster, and each rank with its process id and log."""
    output = nb.run("%mhjax status").out
    assert output.startswith("default · clean · generation ")
    for rank in cluster.ranks:
        assert f"host{rank.rank}  {rank.pid}  alive" in output
        assert str(rank.log_path) in output


def run_in_own_process(*cells: str) -> list[str]:
    """Run the cells of a notebook in a process of its own, whose JAX no other test has used; return the output of each."""
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\nshell = InteractiveShell.instance()\n"
        + "".join(f"assert shell.run_cell({cell!r}).success; print('-' * 9)\n" for cell in cells)
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.split("-" * 9)


@pytest.fixture(scope="module")
def own_jax_cells() -> list[str]:
    """The output of each cell of a notebook that uses its own JAX beside a cluster."""
    return run_in_own_process(
        "%load_ext mhnb",
        "import jax",
        "%mhjax start -n 1 --devices 1",
        "%%mhjax\nimport jax; jax.devices()",
        "%mhjax status",
        "x = 1",
        "int(jax.numpy.arange(4).sum())",
        "%mhjax status",
        "jax.device_count()",
    )


@pytest.mark.test_all
def test_status_warns_of_a_backend_in_the_notebook(own_jax_cells: list[str]) -> None:
    """`%mhjax status` warns if the notebook's own JAX has devices, because they are not the ranks'; mhnb never creates them."""
    before, after = own_jax_cells[4], own_jax_cells[7]
    assert "initialised JAX too" not in before
    assert "this notebook has initialised its own JAX too" in after


@pytest.mark.test_all
def test_own_jax_is_explained_beside_a_cluster_only() -> None:
    """Without a cluster, in a `%%mhjax` cell and in auto mode there is no line; a later plain cell that asks for devices has it."""
    cells = run_in_own_process(
        "%load_ext mhnb",
        "import jax; len(jax.devices())",
        "%mhjax start -n 1 --devices 1",
        "# text\n%%mhjax\nimport jax; jax.device_count()",
        "%mhjax auto on",
        "%%local\njax.device_count()",
        "%mhjax auto off",
        "1 + 1",
        "jax.local_device_count()",
    )
    assert [number for number, cell in enumerate(cells) if "the notebook's own JAX (" in cell] == [8]


def test_first_plain_cell_with_jax_is_explained(own_jax_cells: list[str]) -> None:
    """The first plain cell that uses the notebook's own JAX gets one line about it, and no other cell does."""
    line = "this is the notebook's own JAX (1 CPU device), not that of the ranks; %%mhjax runs a cell on the ranks\n"
    assert own_jax_cells[6].endswith(f"6\n{line}")
    assert "".join(own_jax_cells).count("the notebook's own JAX (") == 1


def test_vars_lists_rank_variables(nb: Session) -> None:
    """`%mhjax vars` lists name, kind and shape of each variable, and where the ranks differ."""
    nb.run("%%mhjax\nimport jax.numpy as jnp\nlisted = jnp.arange(6.0)\nuneven = me")
    output = nb.run("%mhjax vars").out
    assert any(line.split() == ["listed", "local", "Array", "f32[6]", "24", "B"] for line in output.splitlines())
    assert any(line.startswith("uneven") and "on rank 1" in line for line in output.splitlines())


def test_pull_binds_in_notebook(nb: Session) -> None:
    """`%mhjax pull` binds several names at once, each under its own name."""
    nb.run("%%mhjax\nimport numpy as np\npulled, text = np.arange(3), 'word'")
    assert nb.run("%mhjax pull pulled text").out == "pulled · int64[3], 24 B\ntext · str\n"
    np.testing.assert_array_equal(nb.run("pulled").value, [0, 1, 2])
    # A pull that is a statement of its own displays no value, anywhere in a cell. An assignment receives the value.
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
    for statement in ("%time %mhjax pull text", "%%time\n%mhjax pull text", "%mhjax pull text"):
        assert nb.run(statement).value is None
    assert nb.run("text").value == "word"


def test_pull_of_missing_name_names_ranks(nb: Session) -> None:
    """A pull of a name that some ranks lack is an error that names these ranks and the others."""
    nb.run("%%mhjax --ranks 0\nhalf = 1")
    assert "half is missing on rank 1, but exists on rank 0" in nb.try_("%mhjax pull half").text
    assert "nowhere does not exist on ranks 0-1" in nb.try_("%mhjax pull nowhere").text


def test_pull_of_differing_value_offers_flags(nb: Session) -> None:
    """A pull of a value that differs shows it per rank and offers `--ranks` and `--each`, which both work."""
    output = nb.try_("%mhjax pull me").text
    assert "0 on rank 0, 1 on rank 1" in output
    assert "Traceback" not in output
    assert "--ranks 1" in output
    nb.run("%mhjax pull me --ranks 1")
    assert nb.run("me").value == 1
    nb.run("%mhjax pull me --each")
    assert nb.run("me").value == [0, 1]


def test_push_binds_on_the_ranks(nb: Session) -> None:
    """`%mhjax push` binds the same host value on all ranks, or on the ranks of `--ranks`."""
    nb.run("pushed, some = {'a': [1, 2]}, 3")
    assert nb.run("%mhjax push pushed").out == "pushed · dict · on ranks 0-1\n"
    assert "{'a': [1, 2]}" in nb.run("%%mhjax\npushed").out
    assert nb.run("%mhjax push some --ranks 1").out.endswith(" · on rank 1\n")
    assert "rank 0 │ False\nrank 1 │ True" in nb.run("%%mhjax\n'some' in globals()").out


def test_push_of_an_undefined_name_is_refused(nb: Session) -> None:
    """If one name is undefined nothing is pushed, not even the names that exist."""
    nb.run("defined_here = 1")
    assert "this notebook has no variable undefined_here" in nb.expect_usage_error(
        "%mhjax push defined_here undefined_here"
    )
    assert "False" in nb.run("%%mhjax\n'defined_here' in globals()").out


def test_interrupt_ends_running_cell(nb: Session, cluster: Cluster) -> None:
    """`%mhjax interrupt` ends a cell of another thread, as from a second front end; without a running cell it reports that."""
    assert nb.run("%mhjax interrupt").out == "mhjax · no cell is running; nothing to interrupt\n"
    submission = cluster.submit("import time\nprint('in it', flush=True)\nwhile True: time.sleep(0.01)", live=True)
    while not any("in it" in rank.stdout for rank in submission.updates.get(timeout=30)):  # type: ignore[union-attr]
        pass
    assert nb.run("%mhjax interrupt").out == "mhjax · interrupting the running cell\n"
    with pytest.raises(CellInterrupted):
        cluster.follow(submission).check()


def test_interrupt_during_drawing_reaches_ranks(nb: Session, cluster: Cluster) -> None:
    """Ctrl-C while the view draws ends the cell on all ranks, so that no rank continues unwatched."""
    submission = cluster.submit("import time\nprint('in it', flush=True)\nwhile True: time.sleep(0.01)", live=True)

    def draw(_: CellResult) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(CellInterrupted):
        cluster.follow(submission, draw).check()


def test_interrupt_of_queued_cell_spares_running_cell(nb: Session, cluster: Cluster, tmp_path: Path) -> None:
    """Ctrl-C cancels the cell that its user waits for, not the running cell of another thread."""
    flag = tmp_path / "interrupted"
    waiting_source = f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.05)\nran = 'to its end'"
    running = cluster.submit(waiting_source)

    def press() -> None:
        while len(cluster._event_loop._submissions) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(CellInterrupted, match="while the cell was queued"):
        cluster.run("ran = 'never'")
    flag.touch()
    assert cluster.follow(running).ok
    assert "to its end" in nb.run("%%mhjax\nran").out


def test_a_cell_waits_for_its_turn(nb: Session, cluster: Cluster) -> None:
    """A magic cell that is sent while another thread's cell runs is run after it."""
    submission = cluster.submit("import time; time.sleep(0.2); turns = ['first']")
    assert "['first', 'second']" in nb.run("%%mhjax\nturns.append('second'); turns").out
    assert cluster.follow(submission).ok


def test_list_names_each_cluster(nb: Session, cluster: Cluster) -> None:
    """`%mhjax list` prints one line per cluster: name, spec, state and generation."""
    assert nb.run("%mhjax list").out == f"default  2 hosts x 2 devices  clean  generation {cluster.generation}\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("xyz", "unknown command 'xyz'; expected "),
        ("strat -n 2", "unknown command 'strat'. Did you mean 'start'?\n  Help: %mhjax help"),
        ("--ranks 0", "flags belong to %%mhjax, or follow a command"),
        ("start --bogus", "unrecognized arguments: --bogus\n  Help: %mhjax help start"),
        (
            "start --devcies 2",
            "unrecognized arguments: --devcies (did you mean --devices?)\n  Help: %mhjax help start",
        ),
        ("status extra", "unrecognized arguments: extra"),
        ("auto maybe", "choose from"),
        ("pull", "the following arguments are required"),
        ("pull x --ranks 9", "unknown rank 9"),
        ("flight --rank 9", "unknown rank 9"),
        ("flight 2", "unrecognized arguments: 2"),
        ("memory --top 0", "--top 0: expected how many arrays to show, from 1"),
        ("memory --top x", "expected a whole number"),
        ("memory --ranks 9", "unknown rank 9"),
        ("memory x", "unrecognized arguments: x"),
        ("metrics --cell x", "--cell 'x': expected a cell, such as In[7] or 7"),
        ("metrics --cell 99999", "99999 has logged no metric"),
        ("metrics no_such_metric", "unknown metric 'no_such_metric'"),
        ("stragglers --rank 1", "unrecognized arguments: --rank 1"),
        ("trace opne", "'opne': expected open, or a cell, such as In[7] or 7"),
        ("trace 1 2", "'1 2': expected open, or a cell"),
        ("trace 9999", "9999 was not traced"),
        ("pull not-a-name", "not-a-name"),
        ("pull params['a b']", "expected names of variables, got \"params['a b']\""),
        ("push params['w']", "expected names of variables, got \"params['w']\""),
        ("push x --each", "unrecognized arguments: --each"),
        ("stop nobody", "unknown cluster 'nobody'; expected default"),
        ("pull 'open", "has a quote that is not closed"),
        ("start --hosts a,b[", "is not a valid host name"),
        ("start --hosts 4", "--hosts 4: give names of machines, like --hosts a,b; -n 4 says how many hosts"),
        ("start --profile nowhere", "unknown profile 'nowhere'"),
        ("start --set partition", "expected NAME=VALUE"),
        ("start --partition x", "'partition' is a setting of profile slurm"),
        ("start 4 -n 3", "start 4 contradicts -n 3"),
        ("start 4x2 --devices 1", "start 4x2 contradicts --devices 1"),
        ("start four", "expected ranks, or ranks x devices, for example 4 or 4x2; got 'four'"),
        ("start -n 4 --per-host 3", "-n 4 does not fit: 1 host with 3 ranks each"),
        ("restart --to 3", "--to 3 needs --replay"),
        ("restart --replay --to 999", "--to 999: unknown cell; the journal has"),
        ("restart --replay --to x", "expected a cell, such as In[7] or 7"),
    ],
)
def test_bad_command_or_flag_is_refused(nb: Session, line: str, said: str) -> None:
    """A bad command or flag raises a one-line UsageError with what is accepted, and sends nothing to the ranks."""
    nb.run("x = 1")
    assert said in nb.expect_usage_error(f"%mhjax {line}")


@pytest.mark.parametrize("verb", [name for name in list_names() if name != "help"])
def test_each_command_has_help(idle: Session, verb: str) -> None:
    """`--help` prints the flags of a command and runs nothing."""
    output = idle.run(f"%mhjax {verb} --help").out
    assert output.startswith(f"%mhjax {verb} [-h]")
    assert "--help" in output


def test_help_lists_commands(idle: Session) -> None:
    """`%mhjax` alone, `%mhjax --help` and `%mhjax help` list the commands, because new users do not know them."""
    for line in ("%mhjax", "%mhjax --help", "%mhjax help"):
        assert idle.run(line).out == f"{print_text(build_help())}\n"


def test_eval_is_a_cell(nb: Session, cluster: Cluster) -> None:
    """`%mhjax eval` runs one line on every rank as a numbered cell of the journal; an error fails it as it fails a cell."""
    assert nb.run("%mhjax eval 10 + me").out.splitlines()[1:] == ["rank 0 │ 10", "rank 1 │ 11"]
    assert cluster.journal.find_cell(cluster.run("0").seq - 1).source == "10 + me"
    assert type(nb.try_("%mhjax eval 1 / 0").error).__name__ == "CellFailed"


def test_history_lists_cells(nb: Session) -> None:
    """`%mhjax history` lists each cell with its numbers, its end and its first line."""
    number = nb.shell.execution_count
    nb.run("%%mhjax\nfirst_line = 1\nsecond_line = 2")
    last = nb.run("%mhjax history").out.splitlines()[-1]
    assert f"In [{number}]" in last
    assert " ok " in last
    assert last.endswith("first_line = 1")


def test_logs_have_the_ranks_output(nb: Session) -> None:
    """`%mhjax logs` prints the end of each rank's log, each line behind its rank."""
    nb.run("%%mhjax\nprint('written to the log by', me)")
    assert nb.run("%mhjax logs 1 -n 3").out.splitlines()[-1] == "rank 1 │ written to the log by 1"
    both = nb.run("%mhjax logs").out
    assert "rank 0 │ written to the log by 0\n" in both
    assert "rank 1 │ written to the log by 1\n" in both


def test_pull_binds_another_name(nb: Session) -> None:
    """`%mhjax pull x --as y` binds `y`, and leaves the notebook's own `x` alone."""
    nb.run("%%mhjax\npulled = 7")
    nb.run("pulled = 'mine'")
    nb.run("%mhjax pull pulled --as theirs")
    assert (nb.shell.user_ns["pulled"], nb.shell.user_ns["theirs"]) == ("mine", 7)


def test_version_names_the_ranks_jax(nb: Session, cluster: Cluster) -> None:
    """With a cluster `%mhjax version` also has the version of JAX on its ranks."""
    assert nb.run("%mhjax version").out.splitlines()[1] == f"ranks of default · jax {cluster.jax_version}"


def test_refused_cell_names_its_topic(nb: Session) -> None:
    """The short form of mhnb's own error ends with the help topic."""
    nb.try_("%%mhjax --guard off\nassert me == 0")
    assert nb.try_("%%mhjax\n1").text.rstrip().endswith("  Help: %mhjax help not-clean")
    nb.run("%mhjax continue")


def test_where_without_running_cell(nb: Session) -> None:
    """Between cells `%mhjax where` reports that no cell runs."""
    assert nb.run("%mhjax where").out == "mhjax · no cell is running\n"


def test_where_prints_hang_report(
    nb: Session, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While another thread of a script runs a cell, `%mhjax where` prints the hang report."""
    flag = tmp_path / "go"
    source = f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.1)"
    thread = threading.Thread(target=cluster.run, args=(source,))
    thread.start()
    try:
        end = time.monotonic() + 30
        while (report := cluster.where()) is None or not report.known:
            assert time.monotonic() < end
            time.sleep(0.05)
        while "ranks 0-1 in sleep" not in (output := nb.run("%mhjax where").out):
            assert time.monotonic() < end, output
    finally:
        flag.touch()
        thread.join()
    assert "ranks 0-1 in sleep, line 2:  while not os.path.exists" in output
    assert "mhnb where default" in output


TOTAL = """%%mhjax
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
mesh = Mesh(np.array(jax.devices()), ("x",))
x = jax.device_put(jnp.ones(8), NamedSharding(mesh, PartitionSpec("x")))
for step in range(3):
    float(jnp.sum(x))
"""


def test_flight_shows_what_each_rank_did_last(nb: Session, tmp_path: Path) -> None:
    """`%mhjax flight` compares the ranks, `--rank` lists the events of one, and `--json` writes all of them."""
    nb.run(TOTAL.replace("jnp.sum(x)", "jax.jit(lambda a: a.sum() - step)(x)"))
    name = f"In [{nb.shell.execution_count - 1}]"
    lines = nb.run("%mhjax flight").out.splitlines()
    assert re.match(r"default · flight recorder · 2 ranks · \d+ events$", lines[0])
    last = lines.index("last event of each rank:") + 2
    assert [line.split()[0] for line in lines[last : last + 2]] == ["0", "1"]
    assert all(f" end {name} " in re.sub(" +", " ", line) for line in lines[last : last + 2])
    assert lines[-3].split()[:3] == ["rank", "came", "last"]
    one = nb.run("%mhjax flight --rank 1").out
    assert "rank 0" not in one
    assert {"proposal", "agreement", "launch", "compilation"} <= set(one.split())
    path = tmp_path / "events of all.json"
    assert nb.run(f"%mhjax flight --json '{path}'").out.startswith(f"mhjax · wrote {path}: 2 ranks, ")
    saved = json.loads(path.read_text())
    assert [rank["rank"] for rank in saved["ranks"]] == [0, 1]
    assert {event["kind"] for event in saved["ranks"][0]["events"]} >= {
        "cell",
        "proposal",
        "agreement",
        "launch",
        "end",
    }
    missing = tmp_path / "nowhere" / "events.json"
    assert f"--json {missing}: No such file or directory" in nb.try_(f"%mhjax flight --json {missing}").text


def test_stragglers_has_a_row_for_each_rank(nb: Session, cluster: Cluster) -> None:
    """The table is of the last cell with launches, `--all` has those of earlier cells too, and the value has the same numbers."""
    nb.run(TOTAL)
    output = nb.run("%mhjax stragglers").out
    assert f"In [{nb.shell.execution_count - 2}]" in output
    stragglers, total = cluster.stragglers(), cluster.flight().stragglers
    assert stragglers is not None
    assert total is not None
    assert sorted(row.rank for row in stragglers.ranks) == [0, 1]
    assert sum(row.last_count for row in stragglers.ranks) == stragglers.agreement_count == 4
    nb.run(TOTAL)
    assert f"{total.agreement_count + 4} launches" in nb.run("%mhjax stragglers --all").out


def test_traced_cell_has_a_card_and_a_timeline(nb: Session, tmp_path: Path) -> None:
    """The card is below the cell's output, `trace` shows it again, `trace open` says how to look at the file."""
    card = nb.run(f"%%mhjax --trace {tmp_path / 'traces'}\n{TOTAL.partition('mhjax')[2].strip()}\nprint('done')")
    name = f"In [{nb.shell.execution_count - 1}]"
    assert "done" in card.out
    assert f"{name} · trace of ranks 0-1 · " in card.out
    (path,) = (tmp_path / "traces").glob("*.timeline.json.gz")
    assert f"timeline: {path}" in card.out
    nb.run("%%mhjax\nx = 1")
    assert nb.run("%mhjax trace").out.strip() in card.out
    assert nb.run(f"%mhjax trace {name}").out == nb.run("%mhjax trace").out
    opened = nb.run(f"%mhjax trace open {name}").out
    assert str(path) in opened
    assert f"without a network: {tmp_path / 'traces'}/cell" in opened
    assert len(list((tmp_path / "traces").glob("*.timeline.html"))) == 1
    assert "was not traced" in nb.try_(f"%mhjax trace In[{nb.shell.execution_count}]").text


def test_trace_takes_a_folder_and_no_ranks(nb: Session, tmp_path: Path) -> None:
    """Ranks after `--trace` are a slip, and a file is not a folder: nothing is run, and the message has the fix."""
    slip = nb.try_("%%mhjax --trace 0-1\ntraced = 1").text
    assert "--trace 0-1: expected a folder for the trace, not ranks\n  Fix: %%mhjax 0-1 --trace" in slip
    path = tmp_path / "file"
    path.touch()
    assert f"--trace {path}: it is a file; expected a folder" in nb.try_(f"%%mhjax --trace {path}\ntraced = 1").text
    nb.run("%%mhjax\nassert 'traced' not in globals()")


def test_memory_shows_arrays_by_name(nb: Session, cluster: Cluster) -> None:
    """`%mhjax memory` has the largest arrays with the line that made them, `--top` limits them, and the value has all."""
    # Larger than what other tests leave on the ranks.
    nb.run(TOTAL + "big, keep = jnp.ones((3000, 3000)), [jnp.ones(at + 1) for at in range(20)]")
    name = f"In [{nb.shell.execution_count - 1}]"
    lines = nb.run("%mhjax memory --top 1").out.splitlines()
    assert re.match(r"default · memory · ranks 0-1 · \d+ arrays$", lines[0])
    row = f"big f32[3000,3000] 34.3 MiB 34.3 MiB 1 device assigned {name}, line 9"
    # Below may be advice for arrays of other tests.
    at = [" ".join(line.split()) for line in lines].index(row)
    assert re.match(r"\d+ more arrays, ", lines[at + 1])
    only = nb.run("%mhjax memory --ranks 1").out
    assert only.startswith("default · memory · rank 1 · ")
    assert {"big", "keep[3]"} <= {name for row in cluster.memory().arrays for name in row.array.names}
    nb.run("%%mhjax\ndel big, keep")


def test_metrics_are_shown_written_and_returned(nb: Session, cluster: Cluster, tmp_path: Path) -> None:
    """`%mhjax metrics` has a line for each metric, with a name also for each rank; `--csv` writes, an assignment gets the points."""
    nb.run("%%mhjax\nimport mhnb\nfor step in range(5): mhnb.log(step, shown=step / 2, of_rank=me)")
    number = nb.shell.execution_count - 1
    lines = nb.run(f"%mhjax metrics --cell In[{number}]").out.splitlines()
    assert lines[0] == f"2 metrics · ranks 0-1 · 20 points · In [{number}]"
    assert [line.split()[0] for line in lines[1:]] == ["shown", "of_rank"]
    assert [line.split()[0] for line in nb.run("%mhjax metrics of_rank").out.splitlines()[2:]] == ["rank", "0", "1"]
    path = tmp_path / "points of a cell.csv"
    written = nb.run(f"%mhjax metrics shown --csv '{path}'").out
    assert written == f"mhjax · wrote {path}: 10 points of 1 metric\n"
    assert path.read_text() == cluster.metrics.select(name="shown").to_csv()
    nb.run("found = %mhjax metrics shown")
    assert len(nb.shell.user_ns["found"]) == 10


@pytest.mark.requires_part("mpi")
@pytest.mark.test_all
def test_doctor_accepts_start_flags(idle: Session) -> None:
    """`%mhjax doctor` accepts the flags of `start`, to check the same hosts; here, those where mpiexec would start the ranks."""
    outcome = idle.run("%mhjax doctor --profile mpi -n 2 --devices 1 --set extra=--allow-run-as-root")
    assert "preflight · 1 host · all well" in str(outcome)
    assert "unknown profile 'nowhere'" in idle.expect_usage_error("%mhjax doctor --profile nowhere")


def test_doctor_needs_no_cluster(idle: Session) -> None:
    """Without a cluster `%mhjax doctor` checks this machine and shows a table; a failed check is a result, not an error."""
    outcome = idle.run("%mhjax doctor --devices 2")
    assert outcome.out.startswith("preflight · 1 host · ")
    assert "this machine" in outcome.out
    assert "'a+b' is not a valid host name" in idle.expect_usage_error("%mhjax doctor --hosts a+b")


def test_panel_shows_earlier_result(nb: Session) -> None:
    """`%mhjax show` shows the last result or an earlier one by its number; in a terminal as text."""
    nb.run("%%mhjax\nprint('first', 'ab'[me])")
    nb.run("%%mhjax --out second\nprint('second')")
    assert "second" in nb.run("%mhjax show").out
    # The notebook's number. A bare number of mhnb's own may be one that the notebook shows beside another cell.
    first = nb.shell.user_ns["second"].execution_count - 1
    assert "first a" in nb.run(f"%mhjax show In[{first}] --view tabs").out
    nb.run("%mhjax show off")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("off", "no panel is open"),
        ("first", "expected a cell, such as In[7] or 7"),
        ("99999", "not among the last"),
        ("--view x", "choose"),
    ],
)
def test_panel_refuses_bad_arguments(nb: Session, line: str, expected: str) -> None:
    """`%mhjax show` refuses a bad argument or an unavailable result and names the alternatives."""
    nb.run("%%mhjax\nprint('said')")
    outcome = nb.try_(f"%mhjax show {line}")
    assert type(outcome.error).__name__ == "UsageError"
    assert expected in str(outcome.error)

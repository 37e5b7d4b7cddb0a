"""The suite's own tools: optional parts, leftovers, and the directories of a session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.leftovers import no_leftovers, processes_of
from tests.support.source import ROOT
from tests.support.workers import FRONT_ENDS, MACHINES, MORE_MACHINES, MORE_RANKS, RANKS, find_group
from tests.system.hosts import hostnet

_SAMPLE_PARTS = """
from tests.support import parts
parts.PARTS.update(here=lambda: None, gone=lambda: "it is made up", unused=lambda: None)
"""
_SAMPLE_TESTS = """
import pytest

@pytest.mark.requires_part("here")
def test_here(): pass

@pytest.mark.requires_part("gone")
def test_gone(): pass

@pytest.mark.requires_part("here")
def test_skips_itself(): pytest.skip("by itself")
"""


def _run_sample_tests(tmp_path: Path, required: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the sample tests in a session of their own, with MHNB_REQUIRE set."""
    (tmp_path / "made_up_parts.py").write_text(_SAMPLE_PARTS)
    (tmp_path / "test_made_up.py").write_text(_SAMPLE_TESTS)
    return _run_pytest(
        tmp_path, "-rs", "-p", "made_up_parts", "-p", "tests.support.parts", *arguments, MHNB_REQUIRE=required
    )


def _run_pytest(folder: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder with the plugins in `options` alone, without this project's settings."""
    paths = f"{ROOT}{os.pathsep}{folder}"
    environ = {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environ}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        "-c",
        os.devnull,
        *options,
    ]
    return subprocess.run([*command, str(folder)], cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_an_absent_part_is_skipped_with_its_reason(tmp_path: Path) -> None:
    """If nothing is required, the test of a missing part is skipped with its reason, and the run passes."""
    done = _run_sample_tests(tmp_path, "")
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert "gone: it is made up" in done.stdout
    assert "1 passed, 2 skipped" in done.stdout


@pytest.mark.parametrize(
    ("required", "arguments", "said"),
    [
        ("gone", (), "must not be skipped"),
        ("here", (), "must not be skipped: Skipped: by itself"),
        ("unused", (), "MHNB_REQUIRE names unused, and no test of it passed"),
        ("here", ("-k", "gone"), "MHNB_REQUIRE names here, and no test of it passed"),
        ("nobody-knows", (), "names unknown parts"),
    ],
)
@pytest.mark.slow
def test_required_part_without_a_passed_test_fails(
    tmp_path: Path, required: str, arguments: tuple[str, ...], said: str
) -> None:
    """A required part that is missing, skipped by its test, without a test, deselected or unknown fails the run."""
    done = _run_sample_tests(tmp_path, required, *arguments)
    assert done.returncode != pytest.ExitCode.OK, done.stdout
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "1")], ids=["alone", "xdist"])
@pytest.mark.slow
def test_a_required_part_that_passes_is_enough(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """A run in which the required part's test passes succeeds, in one process and with workers."""
    done = _run_sample_tests(tmp_path, "here", "-k", "test_here", *workers)
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr


def test_tests_with_ranks_are_in_groups(request: pytest.FixtureRequest) -> None:
    """Every collected test that starts ranks is in one of the groups."""
    for item in request.session.items:
        if {"ranks", "browser", "hosts"} & {mark.name for mark in item.iter_markers()}:
            assert find_group(item.nodeid) in (RANKS, MORE_RANKS, FRONT_ENDS, MACHINES, MORE_MACHINES), item.nodeid


@pytest.mark.slow
def test_a_group_has_one_worker(tmp_path: Path) -> None:
    """Of two workers one runs all tests of a group, in whatever files they are."""
    test = "def test_it(worker_id, number): print('in', __name__, worker_id)"
    for name in ("ranks/test_x", "lessons/test_b", "test_c"):
        path = tmp_path / "tests" / "integration" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import pytest\n@pytest.mark.parametrize('number', range(4))\n{test}\n")
    done = _run_pytest(tmp_path, "-p", "xdist", "-p", "tests.support.workers", "-n", "2", "-rP")
    shown = {line.split()[-1] for line in done.stdout.splitlines() if line.startswith("in test_")}
    assert "12 passed" in done.stdout, done.stdout + done.stderr
    assert len(shown) == 1, done.stdout


_SAMPLED_TESTS = """
import pytest

@pytest.mark.sample(2)
@pytest.mark.parametrize("number", range(6))
def test_cases(number): print("case", number)

@pytest.mark.sample(2)
def test_one(): pass

@pytest.mark.soak
def test_slow(): pass
"""


@pytest.mark.parametrize(
    ("options", "cases", "count"),
    [(("-m", "not soak"), ["0", "3"], 3), (("-m", "soak"), ["1", "2", "4", "5"], 5), ((), [*"012345"], 8)],
    ids=["make test", "make soak", "by hand"],
)
@pytest.mark.slow
def test_some_cases_are_left_to_make_soak(
    tmp_path: Path, options: tuple[str, ...], cases: list[str], count: int
) -> None:
    """Of a test with the mark `sample` so many cases run, evenly spread; without a selection all of them do."""
    (tmp_path / "test_made_up.py").write_text(_SAMPLED_TESTS)
    done = _run_pytest(tmp_path, "-p", "tests.support.samples", "-rP", *options)
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("case ")] == cases


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system is the reason")
def test_reason_why_hosts_are_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without root, or without the packages, the reason names what is missing."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(hostnet, "_SYSTEM_PATH", str(tmp_path))
    packages = "iproute2, nftables, openssh-client, openssh-server, util-linux"
    assert hostnet.why_absent() == f"not installed: {packages}"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert hostnet.why_absent() == "needs root, for network namespaces"


@pytest.fixture
def child(mhnb_home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with the session's MHNB_HOME that runs until its stdin ends."""
    program = "import sys; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_leftover_process_is_found_and_killed(mhnb_home: Path) -> None:
    """A process that outlives the block fails it, is named, and is killed."""
    started = []

    def leave() -> None:
        program = "print('up', flush=True); input()"
        started.append(subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        # Before its first output it may have no environment yet.
        assert started[0].stdout is not None
        started[0].stdout.readline()

    with pytest.raises(AssertionError, match="left behind:\n  pid "), no_leftovers(mhnb_home, grace_s=0.1):
        leave()
    with started[0] as process:
        assert process.wait() == -signal.SIGKILL


def test_a_process_from_before_may_stay(child: subprocess.Popen[bytes], mhnb_home: Path) -> None:
    """A cluster of wider scope that ran before the block is not a leftover of the block."""
    assert child.pid in [process.pid for process in processes_of(mhnb_home)]
    with no_leftovers(mhnb_home, grace_s=0.1):
        pass


def test_processes_of_another_home_are_not_listed(child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Processes of another MHNB_HOME are not listed, so that two sessions can run side by side."""
    assert processes_of(tmp_path) == []


def test_leftover_thread_is_found(mhnb_home: Path) -> None:
    """A thread that is not a daemon and outlives the block fails it."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="lasting")
    with pytest.raises(AssertionError, match="thread 'lasting'"), no_leftovers(mhnb_home, grace_s=0.1):
        thread.start()
    done.set()
    thread.join()


def test_directories_belong_to_the_session(own_folders: Path) -> None:
    """IPython, Jupyter and mhnb store their files in the session's directory, and no JAX setting of the user is visible."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MHNB_HOME"):
        assert Path(os.environ[name]).parent == own_folders
    assert not [name for name in os.environ if name.startswith(("JAX_", "XLA_"))]


_HANGING_TEARDOWNS = """
import threading
import pytest

@pytest.fixture
def inner():
    yield
    threading.Event().wait()

@pytest.fixture
def outer():
    yield
    threading.Event().wait()

def test_failed(outer, inner): assert False

def test_after(): pass
"""


@pytest.mark.slow
def test_a_hanging_teardown_of_a_failed_test_ends(tmp_path: Path) -> None:
    """After a failure, pytest-timeout has no limit any more: each finalizer gets one, and the tests go on."""
    (tmp_path / "test_made_up.py").write_text(_HANGING_TEARDOWNS)
    plugins = ["-p", "pytest_timeout", "-p", "tests.support.teardown_limits"]
    done = _run_pytest(tmp_path, *plugins, "--timeout", "60", "-o", "teardown_timeout=1")
    assert "1 failed, 1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("this test, which had failed before, took too long") >= 2


@pytest.mark.slow
def test_a_teardown_stuck_in_c_code_ends_with_its_tracebacks(tmp_path: Path) -> None:
    """Where no Python code runs any more, the process ends, and the threads are printed."""
    stuck = "def inner():\n    yield\n    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n    threading.Event().wait()\n"
    sample = (
        f"import signal, threading\nimport pytest\n\n@pytest.fixture\n{stuck}\ndef test_failed(inner): assert False\n"
    )
    (tmp_path / "test_made_up.py").write_text(sample)
    done = _run_pytest(tmp_path, "-p", "tests.support.teardown_limits", "-o", "teardown_timeout=0.2")
    assert done.returncode == 1
    assert "Timeout (0:00:01)!" in done.stderr
    assert "in inner" in done.stderr

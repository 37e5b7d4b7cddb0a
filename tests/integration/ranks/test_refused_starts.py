"""Machines that refuse something: a start succeeds, or its error names the cause, and nothing is left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.limited_process import RestrictedMachine

pytestmark = pytest.mark.test_all

NAMESPACES = pytest.mark.requires_part("namespaces")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="these limits hold so on Linux alone")

_LOOPBACK_UP = "ip link set lo up"


_NETWORK_INTERFACE = (
    "ip link add v0 type veth peer name v1; ip addr add 192.0.2.7/24 dev v0; ip link set v0 up; ip link set v1 up"
)


@NAMESPACES
@pytest.mark.parametrize(
    "address", ["", "203.0.113.5 boxy", "192.0.2.7 boxy"], ids=["unresolved", "elsewhere", "the network"]
)
@pytest.mark.soak
def test_local_cluster_does_not_depend_on_the_host_name(tmp_path: Path, address: str) -> None:
    """Whatever the machine's name resolves to, the ranks connect over loopback, and no port is open to the network."""
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{address}\n")
    prepare = f"{_LOOPBACK_UP}; {_NETWORK_INTERFACE}; hostname boxy; mount --bind {tmp_path}/hosts /etc/hosts"
    started = RestrictedMachine(tmp_path / "home", ("--net", "--uts", "--mount"), prepare).start()
    assert (started.kind, started.text) == ("", "3.0\n")
    assert started.listens
    assert set(started.listens) <= {"127.0.0.1", "::ffff:127.0.0.1"}


@NAMESPACES
@pytest.mark.parametrize(
    ("prepare", "cause"),
    [
        ("", "Network is unreachable"),
        (f"{_LOOPBACK_UP}; ip addr del 127.0.0.1/8 dev lo", "Cannot assign requested address"),
    ],
    ids=["down", "IPv6 alone"],
)
def test_missing_loopback_is_reported(tmp_path: Path, prepare: str, cause: str) -> None:
    """Without loopback no process is started, and the error says how to fix it.

    The controller and the ranks connect at 127.0.0.1.
    """
    started = RestrictedMachine(tmp_path / "home", ("--net",), prepare).start()
    assert started.kind == "PreflightFailed"
    assert "cannot reach itself at 127.0.0.1" in started.text
    assert cause in started.text
    assert "ip link set lo up" in started.text


@NAMESPACES
@pytest.mark.parametrize("limit", ["nr_inodes=3", "nr_inodes=30", "size=4k", "size=32k"])
@pytest.mark.sample(1)
def test_full_disk_is_reported(tmp_path: Path, limit: str) -> None:
    """If the folder of the runs has no inodes or blocks left, at once or for the ranks' files, the error says so."""
    home = tmp_path / "home"
    started = RestrictedMachine(home, ("--mount",), f"mount -t tmpfs -o {limit} tmpfs {home}").start()
    assert started.kind == "LaunchError"
    assert f"{home}: mhnb cannot store journals and logs here" in started.text
    assert "No space left on device" in started.text
    assert "df -i" in started.text


@NAMESPACES
def test_read_only_home_is_reported(tmp_path: Path) -> None:
    """A home folder that cannot be written to is reported, for root too, because the disk is read-only."""
    home = tmp_path / "home"
    prepare = f"mount --bind {home} {home}; mount -o remount,ro,bind {home}"
    started = RestrictedMachine(home, ("--mount",), prepare).start()
    assert started.kind == "LaunchError"
    assert "Read-only file system" in started.text
    assert "MHNB_HOME" in started.text


@NAMESPACES
@pytest.mark.parametrize("options", ["ro", "size=4k"], ids=["read-only", "tiny"])
@pytest.mark.soak
def test_shared_memory_and_temporary_folder_are_not_needed(tmp_path: Path, options: str) -> None:
    """Without space in `/dev/shm` and in the temporary folder the ranks start and connect."""
    prepare = f"mount -t tmpfs -o {options} tmpfs /dev/shm; mkdir {tmp_path}/tmp; mount -t tmpfs -o {options} tmpfs {tmp_path}/tmp"
    machine = RestrictedMachine(tmp_path / "home", ("--mount",), prepare)
    started = machine.start(environment={"TMPDIR": str(tmp_path / "tmp")})
    assert (started.kind, started.text) == ("", "3.0\n")


@NAMESPACES
@pytest.mark.soak
def test_home_on_a_world_writable_volume_works(tmp_path: Path) -> None:
    """The home folder may be on a volume that every user can write to.

    Volumes of containers are like this: without a sticky bit, and used by the processes of one user.
    """
    home = tmp_path / "volume" / "home"
    home.parent.mkdir()
    prepare = f"mount -t tmpfs -o mode=0777 tmpfs {home.parent}; mkdir -m 0700 {home}"
    started = RestrictedMachine(home, ("--mount",), prepare).start()
    assert (started.kind, started.text) == ("", "3.0\n")


@NAMESPACES
@pytest.mark.soak
def test_full_disk_for_the_ipython_profile_is_reported(tmp_path: Path) -> None:
    """If there is no space for IPython's profile, the error names the folder and the variable that selects another one.

    IPython makes a folder of its own in each rank.
    """
    (tmp_path / "ipython").mkdir()
    machine = RestrictedMachine(
        tmp_path / "home", ("--mount",), f"mount -t tmpfs -o nr_inodes=1 tmpfs {tmp_path}/ipython"
    )
    started = machine.start(environment={"IPYTHONDIR": str(tmp_path / "ipython")})
    assert started.kind == "EnginesMissing"
    assert "No space left on device" in started.text
    assert "IPYTHONDIR" in started.text


@LINUX
@pytest.mark.parametrize("count", [16, 64, 100])
@pytest.mark.sample(1)
def test_low_limit_on_open_files_is_reported(tmp_path: Path, count: int) -> None:
    """A hard limit on open files at which the controller would fail, at once or when the ranks connect, starts nothing."""
    limit = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({count}, {count}))"
    started = RestrictedMachine(tmp_path / "home").start(limit)
    assert started.kind == "PreflightFailed"
    assert f"a process can open at most {count} files here" in started.text
    assert "ulimit -n" in started.text


@LINUX
@pytest.mark.soak
def test_soft_limit_on_open_files_is_raised(tmp_path: Path) -> None:
    """A soft limit that the shell sets and the system lets a process raise does not stop the ranks."""
    started = RestrictedMachine(tmp_path / "home").start("resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))")
    assert (started.kind, started.text) == ("", "3.0\n")


@LINUX
@pytest.mark.parametrize("nbytes", [0, 100, 30_000])
@pytest.mark.sample(1)
def test_limit_on_file_sizes_is_reported(tmp_path: Path, nbytes: int) -> None:
    """A limit on file sizes starts nothing, because it would cut off the logs, the journal and the ranks' shared board."""
    started = RestrictedMachine(tmp_path / "home").start(
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({nbytes}, {nbytes}))"
    )
    assert started.kind == "PreflightFailed"
    assert f"a file can have at most {nbytes} bytes here (ulimit -f)" in started.text


@pytest.mark.sample(1)
@NAMESPACES
@pytest.mark.parametrize("count", [1, 2, 4, 12, 48])
def test_limit_on_processes_is_reported(tmp_path: Path, count: int) -> None:
    """A limit on processes is named in the error, whichever process meets it, and the start is undone.

    The notebook's own threads, its supervisor, the controller or a rank may meet it.
    """
    limit = f"resource.setrlimit(resource.RLIMIT_NPROC, ({count}, {count}))"
    started = RestrictedMachine(tmp_path / "home", is_other_user=True).start(limit)
    assert started.kind in ("LaunchError", "EnginesMissing")
    assert "ulimit -u" in started.text


@LINUX
@pytest.mark.parametrize("mb", [300, 1024])
@pytest.mark.sample(1)
def test_limit_on_address_space_is_reported(tmp_path: Path, mb: int) -> None:
    """A limit on address space is named beside JAX's own words.

    JAX cannot be loaded, or aborts because it cannot make its threads.
    """
    limit = f"resource.setrlimit(resource.RLIMIT_AS, ({mb} << 20, {mb} << 20))"
    started = RestrictedMachine(tmp_path / "home").start(limit)
    assert started.kind in ("LaunchError", "EnginesMissing")
    assert "ulimit -v" in started.text


@pytest.mark.parametrize(
    ("variable", "value"), [("PYTHONHOME", "/nonexistent"), ("PYTHONIOENCODING", "nonsense"), ("PYTHONMALLOC", "none")]
)
@pytest.mark.sample(1)
def test_variable_that_breaks_python_is_reported(tmp_path: Path, variable: str, value: str) -> None:
    """An environment variable with which Python does not start is named with its value.

    The notebook's own Python started without it.
    """
    started = RestrictedMachine(tmp_path / "home").start(f"os.environ[{variable!r}] = {value!r}")
    assert started.kind == "LaunchError"
    assert f"{variable}={value}" in started.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("raise SystemExit('of my own')", "of my own"),
        ("import os; os._exit(7)", "sitecustomize"),
    ],
    ids=["said", "silent"],
)
def test_sitecustomize_that_ends_python_is_reported(tmp_path: Path, text: str, expected: str) -> None:
    """A `sitecustomize` that ends Python is reported with its own words.

    If it has none, the error names what runs at the start of each Python.
    """
    (tmp_path / "sitecustomize.py").write_text(text)
    started = RestrictedMachine(tmp_path / "home").start(f"os.environ['PYTHONPATH'] = {str(tmp_path)!r}")
    assert started.kind == "LaunchError"
    assert expected in started.text
    assert "the cause and start again" in started.text


@pytest.mark.parametrize(
    "text", ["raise ValueError('broken')", "def f(:", "print('hello')"], ids=["raises", "syntax", "prints"]
)
@pytest.mark.soak
def test_broken_sitecustomize_stops_nothing(tmp_path: Path, text: str) -> None:
    """A broken `sitecustomize` stops nothing: Python goes on without it, and so do the ranks."""
    (tmp_path / "sitecustomize.py").write_text(text)
    started = RestrictedMachine(tmp_path / "home").start(f"os.environ['PYTHONPATH'] = {str(tmp_path)!r}")
    assert (started.kind, started.text) == ("", "3.0\n")


def test_module_that_hides_a_standard_one_is_reported(tmp_path: Path) -> None:
    """If PYTHONPATH has a `json` of the user's, the error names its file and line."""
    (tmp_path / "json.py").write_text("raise ValueError('my json')")
    started = RestrictedMachine(tmp_path / "home").start(f"os.environ['PYTHONPATH'] = {str(tmp_path)!r}")
    assert started.kind == "LaunchError"
    assert str(tmp_path / "json.py") in started.text
    assert "my json" in started.text


@pytest.mark.parametrize("file", ["ipython_config.py", "ipython_kernel_config.py", "startup/00.py"])
@pytest.mark.soak
def test_broken_ipython_profile_stops_nothing(tmp_path: Path, file: str) -> None:
    """A broken IPython profile stops nothing, because the ranks have a profile of their own."""
    path = tmp_path / "ipython" / "profile_default" / file
    path.parent.mkdir(parents=True)
    path.write_text("def f(:")
    started = RestrictedMachine(tmp_path / "home").start(environment={"IPYTHONDIR": str(tmp_path / "ipython")})
    assert (started.kind, started.text) == ("", "3.0\n")


@pytest.mark.parametrize(
    "folder", ["/nonexistent", "a" * 120, "file"], ids=["missing", "too long for a socket", "a file"]
)
@pytest.mark.soak
def test_unusable_temporary_folder_stops_nothing(tmp_path: Path, folder: str) -> None:
    """An unusable temporary folder stops nothing, because a local cluster has no file in it."""
    (tmp_path / "file").touch()
    (tmp_path / ("a" * 120)).mkdir()
    started = RestrictedMachine(tmp_path / "home").start(environment={"TMPDIR": str(tmp_path / folder)})
    assert (started.kind, started.text) == ("", "3.0\n")


@pytest.mark.soak
def test_home_too_long_for_a_socket_stops_nothing(tmp_path: Path) -> None:
    """A home folder stops nothing if the socket's path in it is longer than the system allows."""
    started = RestrictedMachine(tmp_path / ("a" * 120)).start()
    assert (started.kind, started.text) == ("", "3.0\n")


@pytest.mark.parametrize(
    ("executable", "expected"),
    [("/nonexistent/python", "/nonexistent/python"), (None, "does not know this Python's path")],
)
def test_missing_python_is_reported(tmp_path: Path, executable: str | None, expected: str) -> None:
    """A missing Python is reported.

    An embedded interpreter has no executable, or an environment was removed while the notebook runs.
    """
    started = RestrictedMachine(tmp_path / "home").start(f"sys.executable = {executable!r}")
    assert started.kind == "LaunchError"
    assert expected in started.text

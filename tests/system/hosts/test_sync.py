"""Sync of the user's code to machines that do not have it: a private folder hides the shared one on each of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from mhnb.cluster.files import sync
from mhnb.errors import ClusterError, InvalidRequest
from mhnb.magics.files import format_sync_report
from tests.system.hosts.cluster import Begin
from tests.system.hosts.hostnet import HostNet, wait_until


@pytest.fixture
def project(net: HostNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the notebook's own, and that two machines do not have."""
    folder = tmp_path / "home" / "project"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "mine.py").write_text("def say(): return 'first'\n")
    (folder / "empty.txt").touch()
    (folder / ".gitignore").write_text("data/\n")
    (folder / "data").mkdir()
    (folder / "data" / "big.bin").write_bytes(bytes(3 << 20))
    for host in list(net)[:2]:
        host.mount_disk(folder.parent, nbytes=8 << 20)
    monkeypatch.chdir(folder)
    return folder


PRINT_STATE = "from lib.mine import say\nimport os\nprint(say(), os.getcwd(), os.path.exists('data'))"


def test_synced_folder_is_importable_and_updated(project: Path, begin: Begin) -> None:
    """A sync copies the folder before the first cell, later only changed files, once per host, and reports outdated imports."""
    cluster = begin(2, 1, ranks_per_host=2, sync=".")
    result = cluster.run(PRINT_STATE).check()
    assert {rank.stdout for rank in result} == {f"first {project} False\n"}
    (project / "lib" / "mine.py").write_text("def say(): return 'second'\n")
    (project / "new.bin").write_bytes(bytes(range(256)) * 8192)
    report = sync(cluster)
    assert [(host.host, host.paths) for host in report.hosts] == [
        (name, ("lib/mine.py", "new.bin")) for name in ("host0 (alpha)", "host1 (beta)")
    ]
    assert {host.imported for host in report.hosts} == {("lib.mine",)}
    again = "import importlib, lib.mine, zlib\nprint(importlib.reload(lib.mine).say(), zlib.crc32(open('new.bin', 'rb').read()))"
    crc = zlib.crc32((project / "new.bin").read_bytes())
    assert {rank.stdout for rank in cluster.run(again).check()} == {f"second {crc}\n"}
    assert format_sync_report(sync(cluster)).splitlines()[1:] == [
        f"  host0 (alpha), host1 (beta) {project}: already up to date"
    ]
    fresh = cluster.restart()
    assert fresh.run(PRINT_STATE).check()[3].stdout == f"second {project} False\n"
    fresh.stop()


def test_full_disk_on_a_host_is_reported(project: Path, begin: Begin) -> None:
    """The error for a full disk contains host, file and reason; earlier files are intact, and no partial file is left."""
    cluster = begin(2, 1, sync=".")
    (project / "huge.bin").write_bytes(bytes(16 << 20))
    with pytest.raises(ClusterError, match=r"sync failed on host0 \(alpha\): OSError: .*No space left on device"):
        sync(cluster)
    assert {rank.stdout for rank in cluster.run("import os\nprint(sorted(os.listdir()))").check()} == {
        "['.gitignore', 'empty.txt', 'lib']\n"
    }
    assert cluster.state == "clean"


def test_start_with_failed_sync_leaves_no_process(project: Path, net: HostNet, begin: Begin) -> None:
    """The start fails with the sync's error, and every process ends."""
    (project / "huge.bin").write_bytes(bytes(16 << 20))
    with pytest.raises(ClusterError, match="No space left"):
        begin(2, 1, sync=".")
    wait_until(lambda: not any(host.pids() for host in net), "every host is without a process")


def test_sync_copies_nothing_into_a_home_directory(project: Path, begin: Begin) -> None:
    """Ranks without the folder run in their home: the sync copies nothing, and the error says how to start instead."""
    cluster = begin(2, 1)
    with pytest.raises(
        InvalidRequest, match=r"host0 \(alpha\) does not have the notebook's folder.*\n.*start with --sync \."
    ):
        sync(cluster, ".")
    cluster.run("import os\nassert not os.path.exists('lib/mine.py')").check()


def test_cwd_is_used_for_ranks_and_files(project: Path, begin: Begin, net: HostNet) -> None:
    """With `--cwd`, ranks run in that folder and files are copied there, whether the machine has the notebook's folder or not."""
    net[0].run("mkdir", "-p", project.parent / "other", project)
    net[1].run("mkdir", "-p", project.parent / "other")
    cluster = begin(2, 1, cwd=str(project.parent / "other"), sync="lib")
    result = cluster.run("import os\nfrom lib.mine import say\nprint(os.getcwd(), say())").check()
    assert {rank.stdout for rank in result} == {f"{project.parent / 'other'} first\n"}


@pytest.mark.parametrize("make", [Path.exists, Path.touch], ids=["absent", "a file"])
def test_invalid_sync_folder_is_refused(begin: Begin, tmp_path: Path, make: Callable[[Path], object]) -> None:
    """A sync folder that does not exist or is a file is reported before any process starts."""
    make(tmp_path / "what")
    with pytest.raises(InvalidRequest, match=rf"sync {tmp_path}/what: "):
        begin(2, 1, sync=str(tmp_path / "what"))


def test_unreadable_file_is_reported(project: Path, begin: Begin) -> None:
    """A file that cannot be read is reported before any file is copied, with a fix."""
    cluster = begin(1, 1, sync="lib")
    (project / "lib" / "odd").symlink_to("/proc/self/mem")
    with pytest.raises(
        InvalidRequest, match=r"odd cannot be read \(Input/output error\)\n  Fix: exclude it with a .gitignore"
    ):
        sync(cluster, "lib")

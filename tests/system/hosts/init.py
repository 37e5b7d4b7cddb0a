"""Process 1 of a made-up machine: its own name, mounts and sshd; then it reaps whatever ends, for ever.

`python init.py NAME FOLDER`, in new namespaces for mounts, processes, name and network.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def main(name: str, folder: Path) -> None:
    """Be the machine."""
    _mount("--make-rprivate", "/")
    _mount("-t", "proc", "proc", "/proc")
    _mount("-t", "tmpfs", "-o", "size=4g", "tmpfs", "/dev/shm")
    socket.sethostname(name)
    _mount("--bind", str(folder / "hosts"), "/etc/hosts")
    # XLA tells machines apart by it. Each boot has another.
    boot_id = folder / f"boot_id.{name}"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    _mount("--bind", str(boot_id), "/proc/sys/kernel/random/boot_id")
    # What mhnb keeps there goes by the machine's name, which machines of a session beside this one have too: it would take this
    # one's processes for gone, and their keys away.
    own = Path(tempfile.gettempdir()) / f"mhnb-{os.getuid()}-{name}"
    own.mkdir(mode=0o700, exist_ok=True)
    kept = folder / "own" / name
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    _mount("--bind", str(kept), str(own))
    # The start-up files of the user who runs the tests may print, or take a second.
    for each in (".bashrc", ".profile", ".bash_profile"):
        if (Path.home() / each).exists():
            _mount("--bind", str(folder / "empty"), str(Path.home() / each))
    with (folder / "log" / f"sshd.{name}").open("ab") as log:
        subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config")], stdout=log, stderr=log)
    while True:
        # Nothing to reap would mean that sshd is gone: then the machine may end too.
        os.wait()


if __name__ == "__main__":
    with contextlib.suppress(ChildProcessError):
        main(sys.argv[1], Path(sys.argv[2]))

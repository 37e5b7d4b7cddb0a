"""Process 1 of a simulated machine: it sets up its own name, mounts and sshd, and then reaps ended processes forever.

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
    """Run the machine."""
    _mount("--make-rprivate", "/")
    _mount("-t", "proc", "proc", "/proc")
    _mount("-t", "tmpfs", "-o", "size=4g", "tmpfs", "/dev/shm")
    socket.sethostname(name)
    _mount("--bind", str(folder / "hosts"), "/etc/hosts")
    # XLA identifies machines by the boot id. Each boot has a new one.
    boot_id = folder / f"boot_id.{name}"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    _mount("--bind", str(boot_id), "/proc/sys/kernel/random/boot_id")
    # mhnb's folder there is named after the machine, and machines of a concurrent session have the same names. A shared
    # folder would let that session take this one's processes for ended, and remove their keys.
    own = Path(tempfile.gettempdir()) / f"mhnb-{os.getuid()}-{name}"
    own.mkdir(mode=0o700, exist_ok=True)
    own_copy = folder / "own" / name
    own_copy.mkdir(mode=0o700, parents=True, exist_ok=True)
    _mount("--bind", str(own_copy), str(own))
    # The start-up files of the user who runs the tests may print, or take a second.
    for each in (".bashrc", ".profile", ".bash_profile"):
        if (Path.home() / each).exists():
            _mount("--bind", str(folder / "empty"), str(Path.home() / each))
    with (folder / "log" / f"sshd.{name}").open("ab") as log:
        subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config")], stdout=log, stderr=log)
    while True:
        # If there is nothing to reap, sshd has ended, so the machine may end too.
        os.wait()


if __name__ == "__main__":
    with contextlib.suppress(ChildProcessError):
        main(sys.argv[1], Path(sys.argv[2]))

"""Print the files of the package that four chains run through: `python -m tests.policy.chains [--no-ssh]`.

The chains are a cell from the magic to the screen, the agreement on one launch, a start over ssh, and a pull.
Each is really run, with two ranks. Every process records each file of the package of which it calls a function meanwhile.
The start over ssh needs root and network namespaces, as `tests/system/hosts` does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.source import PACKAGE, ROOT

CHAINS = ("cell", "agreement", "pull", "ssh start")

_TRACER = """
import mmap, os, sys, threading

folder = os.environ.get("MHNB_CHAINS")
if folder:
    with open(os.path.join(folder, "chain"), "rb") as control:
        current = mmap.mmap(control.fileno(), 5, access=mmap.ACCESS_READ)
    seen, package = set(), os.environ["MHNB_PACKAGE"] + os.sep

    def record(frame, event, arg):
        chain = current[0]
        # Code without CO_OPTIMIZED is a module or a class body: the file is imported, and nothing of it is used yet.
        if not chain or event != "call" or not frame.f_code.co_flags & 1:
            return
        name = frame.f_code.co_filename
        if not name.startswith(package):
            return
        only_pid = int.from_bytes(current[1:5], "little")
        is_main = threading.current_thread() is threading.main_thread()
        if only_pid and not (only_pid == os.getpid() and is_main):
            return
        key = (os.getpid(), chain, name)
        if key not in seen:
            seen.add(key)
            out = os.open(os.path.join(folder, "files"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(out, f"{chain} {name}\\n".encode())
            os.close(out)

    threading.setprofile(record)
    sys.setprofile(record)
"""
"""A `sitecustomize` module: every Python process records the files that it runs while a chain is set."""

_SESSION = """
import os
from IPython.core.interactiveshell import InteractiveShell
from tests.policy.chains import set_chain

SETUP = '''%%mhjax
import os, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("x",))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("x")))
total = jax.jit(jnp.sum)
print(float(total(x)))'''
AGREE = '''%%mhjax
from tests.policy.chains import set_chain
if jax.process_index() == 0: set_chain("agreement", only_here=True)
y = total(x)
if jax.process_index() == 0: set_chain("")'''

shell = InteractiveShell.instance()
shell.run_cell("%load_ext mhnb")
shell.run_line_magic("mhjax", "start -n 2 --devices 1")
for _ in range(2):
    shell.run_cell(SETUP)
    shell.run_cell(AGREE.replace('"agreement"', '""'))
    shell.run_line_magic("mhjax", "pull x")
    shell.run_cell("%%mhjax\\nprint(jax.process_index())")
set_chain("cell")
shell.run_cell("%%mhjax\\nprint(jax.process_index())")
set_chain("")
shell.run_cell(AGREE)
set_chain("pull")
shell.run_line_magic("mhjax", "pull x")
set_chain("")
shell.run_line_magic("mhjax", "stop")
"""

_SSH_SESSION = """
import os
import mhnb
from tests.policy.chains import set_chain
from tests.support.source import ROOT
from tests.system.hosts.hostnet import HostNet

with HostNet() as net:
    names = [host.name for host in net][:2]
    passed = {name: os.environ[name] for name in ("MHNB_CHAINS", "MHNB_PACKAGE", "PYTHONPATH")}
    set_chain("ssh start")
    cluster = mhnb.start(names, 1, config_file=str(net.ssh_config), environment=passed)
    set_chain("")
    cluster.stop()
"""


def set_chain(name: str, *, only_here: bool = False) -> None:
    """Set the chain that all processes record, or only the main thread of this one; the empty string for none."""
    pid = os.getpid() if only_here else 0
    with Path(os.environ["MHNB_CHAINS"], "chain").open("r+b") as control:
        control.write(bytes([CHAINS.index(name) + 1 if name else 0]) + pid.to_bytes(4, "little"))


@contextlib.contextmanager
def _tracing() -> Iterator[tuple[Path, dict[str, str]]]:
    with tempfile.TemporaryDirectory(prefix="mhnb-chains-") as name:
        folder = Path(name)
        (folder / "chain").write_bytes(bytes(5))
        (folder / "files").touch()
        (folder / "sitecustomize.py").write_text(_TRACER)
        home = folder / "home"
        home.mkdir(mode=0o700)
        environment = {
            **os.environ,
            "MHNB_CHAINS": name,
            "MHNB_HOME": str(home),
            "MHNB_PACKAGE": str(PACKAGE),
            "PYTHONPATH": f"{name}{os.pathsep}{ROOT}",
        }
        yield folder, environment


def measure(*, ssh: bool) -> dict[str, set[str]]:
    """Run the chains and return the files of each, relative to the package."""
    found: dict[str, set[str]] = {}
    for session in (_SESSION, _SSH_SESSION) if ssh else (_SESSION,):
        with _tracing() as (folder, environment):
            subprocess.run([sys.executable, "-c", session], env=environment, cwd=ROOT, check=True, stdout=sys.stderr)
            for line in (folder / "files").read_text().splitlines():
                chain, path = line.split(" ", 1)
                found.setdefault(CHAINS[int(chain) - 1], set()).add(Path(path).relative_to(PACKAGE).as_posix())
    return found


def main() -> None:
    """Print each chain with the number of its files."""
    parser = argparse.ArgumentParser(prog="python -m tests.policy.chains")
    parser.add_argument("--no-ssh", action="store_true", help="leave out the start over ssh")
    found = measure(ssh=not parser.parse_args().no_ssh)
    for name, files in found.items():
        print(f"{name}: {len(files)} files")
        for file in sorted(files):
            print(f"  {file}")


if __name__ == "__main__":
    main()

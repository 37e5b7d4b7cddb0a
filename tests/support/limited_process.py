"""A start in a process of its own, on a machine restricted by namespaces, limits or the environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.leftovers import no_leftovers
from tests.support.source import ROOT

__all__ = ["RestrictedMachine", "StartResult", "why_absent"]

_PROGRAM = """
import json, os, resource, sys
import mhnb, psutil
exec(os.environ.pop("BEFORE"))
result = {"kind": "", "text": "", "listens": []}
try:
    cluster = mhnb.start(2, 1, name="refused", start_timeout_s=500)
except mhnb.errors.LaunchError as error:
    result |= {"kind": type(error).__name__, "text": str(error)}
else:
    result["text"] = cluster.run(%r).check()[1].stdout
    processes = psutil.Process(cluster.supervisor_pid).children(recursive=True)
    result["listens"] = sorted({
        connection.laddr.ip
        for process in [psutil.Process(cluster.supervisor_pid), *processes]
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    })
    cluster.stop()
print("result", json.dumps(result))
"""
_SUM = (
    "import jax\nfrom jax.experimental import multihost_utils as m\n"
    "print(m.process_allgather(jax.numpy.float32(1 + jax.process_index())).sum())"
)
_TIMEOUT_S = 300
"""A start that has not failed by then waits for its own limit of 500 s."""
_OTHER_USER = 65_533
_CAPABILITIES = "+dac_override,+dac_read_search"


@dataclass(frozen=True, slots=True)
class StartResult:
    """The result of a start."""

    kind: str
    """The class of its LaunchError; empty after a successful start."""
    text: str
    """The text of the error, or a cell's output after a successful start."""
    listens: Sequence[str] = ()
    """The addresses on which a process of the cluster listened."""


@dataclass(frozen=True, slots=True)
class RestrictedMachine:
    """The restricted machine.

    Args:
        home: its MHNB_HOME, which is created.
        namespaces: flags of `unshare`, such as `--net`; without any, root is not needed.
        prepare: shell commands that run in the namespaces, before Python.
        is_other_user: run as a user who is not root, so that limits of a user apply; needs root.
    """

    home: Path
    namespaces: Sequence[str] = ()
    prepare: str = ""
    is_other_user: bool = False

    def start(self, before: str = "", environment: Mapping[str, str] | None = None) -> StartResult:
        """Start two ranks there and stop them; no process may be left.

        Args:
            before: Python code that the process runs first, with `resource` and `os`.
            environment: variables in addition to the usual ones.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-c", _PROGRAM % _SUM]
        if self.is_other_user:
            os.chown(self.home, _OTHER_USER, _OTHER_USER)
            user = ["--reuid", str(_OTHER_USER), "--clear-groups"]
            kept = ["--inh-caps", _CAPABILITIES, "--ambient-caps", _CAPABILITIES]
            words = ["setpriv", *user, *kept, *words]
        inside = ["sh", "-ec", f'{self.prepare}\nexec "$@"', "sh", *words] if self.prepare else words
        enters = ["unshare", *self.namespaces] if self.namespaces else []
        own = {"MHNB_HOME": str(self.home), "BEFORE": before, "PYTHONPATH": str(ROOT), "HOME": str(self.home)}
        with no_leftovers(self.home):
            done = subprocess.run(
                [*enters, *inside], capture_output=True, text=True, check=False, cwd=ROOT, timeout=_TIMEOUT_S,
                env={**os.environ, **own, **(environment or {})},
            )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads(done.stdout.rpartition("result ")[2])
        return StartResult(result["kind"], result["text"], result["listens"])


def why_absent() -> str | None:
    """Return why namespaces are not available here; None if they are."""
    if sys.platform != "linux":
        return f"needs Linux; this is {sys.platform}"
    if os.geteuid() != 0:
        return "needs root, for namespaces"
    if missing := [tool for tool in ("unshare", "setpriv", "ip") if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"

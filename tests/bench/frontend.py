"""A front end without a page: it starts a real kernel process, sends cells and times them to idle.

"Front end to idle" starts just before the execute_request is written. It ends when the `idle` of that request has been read
and decoded, with every message in between decoded too, as a page must do.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import zmq
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

__all__ = ["CellBroke", "FrontEnd", "end_tree", "descendants", "wait_until_ended"]

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class CellBroke(Exception):
    """A cell raised, its kernel died, or it was not idle in time."""


class FrontEnd:
    """One kernel process and its only client."""

    def __init__(self, argv: Sequence[str], directory: Path, env: Mapping[str, str], *, ready_s: float = 90) -> None:
        kernels = directory / "kernels"
        (kernels / "contestant").mkdir(parents=True, exist_ok=True)
        text = {"argv": [*argv, "-f", "{connection_file}"], "display_name": "contestant", "language": "python"}
        (kernels / "contestant" / "kernel.json").write_text(json.dumps(text))
        specs = KernelSpecManager(kernel_dirs=[str(kernels)], ensure_native_kernel=False)
        self.manager = KernelManager(kernel_name="contestant", kernel_spec_manager=specs)
        self.log = (directory / "kernel.log").open("ab")
        self.manager.start_kernel(env=dict(env), cwd=str(directory), stdout=self.log, stderr=self.log)
        self.process = psutil.Process(getattr(self.manager.provisioner, "pid", None))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        try:
            self._wait_ready(time.perf_counter() + ready_s)
        except BaseException:
            self.kill()
            raise

    def _wait_ready(self, deadline: float) -> None:
        # Not the client's own wait_for_ready: it waits for 0.2 s of silence at the end, which would count as start.
        sent: set[str] = set()
        while not sent or not self._idle_seen(sent, time.perf_counter() + 1.0):
            if time.perf_counter() > deadline or not self.manager.is_alive():
                raise CellBroke(f"the kernel did not become ready; {self._end_of_log()}")
            sent.add(self.client.kernel_info())

    def cell(self, code: str, *, limit_s: float = 120) -> float:
        """Run a cell; return the seconds from the request to its idle.

        Raises:
            CellBroke: the cell raised, or was not idle within `limit_s`.
        """
        session = self.client.session
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        request = session.msg("execute_request", {**content, "stop_on_error": True})
        msg_id = request["header"]["msg_id"]
        started = time.perf_counter()
        self.client.shell_channel.send(request)
        idle = self._idle_seen({msg_id}, started + limit_s)
        took = time.perf_counter() - started
        if not idle:
            raise CellBroke(f"{_first_line(code)} was not idle within {limit_s} s; {self._end_of_log()}")
        self._check_reply(msg_id, code)
        return took

    def _idle_seen(self, parents: set[str], deadline: float) -> bool:
        session, socket = self.client.session, self.client.iopub_channel.socket
        while (remaining_s := deadline - time.perf_counter()) > 0:
            if socket.poll(min(remaining_s, 1.0) * 1000, zmq.POLLIN):
                if _is_idle(session.recv(socket)[1], parents):
                    return True
            elif not self.manager.is_alive():
                return False
        return False

    def _check_reply(self, msg_id: str, code: str) -> None:
        reply = self.client.get_shell_msg(timeout=10)
        while reply["parent_header"].get("msg_id") != msg_id:
            reply = self.client.get_shell_msg(timeout=10)
        content = reply["content"]
        if content["status"] != "ok":
            error_text = "\n".join(
                [*content.get("traceback", ())[-3:], f"{content.get('ename')}: {content.get('evalue')}"]
            )
            raise CellBroke(f"{_first_line(code)} raised\n{_ANSI.sub('', error_text)[-1500:]}")

    def _end_of_log(self) -> str:
        self.log.flush()
        return "its log ends:\n" + Path(self.log.name).read_text(errors="replace")[-1500:]

    def shutdown(self) -> None:
        """Shut the kernel down as a front end does, and wait for its process."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)
        self.log.close()

    def kill(self) -> None:
        """Kill the kernel and its descendants, in any state."""
        below = descendants(self.process)
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        end_tree(below)
        self.log.close()


def _first_line(code: str) -> str:
    return repr(" / ".join(code.strip().splitlines()[:2]))


def _is_idle(message: Mapping[str, Any], parents: set[str]) -> bool:
    return (
        message["msg_type"] == "status"
        and message["content"]["execution_state"] == "idle"
        and message["parent_header"].get("msg_id") in parents
    )


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """Return all descendants of a process, for `end_tree`."""
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def end_tree(processes: Sequence[psutil.Process]) -> None:
    """Kill processes that the benchmark started; some may have ended already."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=10)


def wait_until_ended(processes: Sequence[psutil.Process], limit_s: float) -> None:
    """Wait until none of the processes runs.

    Raises:
        CellBroke: a process still runs after `limit_s`.
    """
    _, running = psutil.wait_procs(processes, timeout=limit_s)
    if running:
        raise CellBroke(f"processes {[p.pid for p in running]} still run {limit_s} s after the stop")

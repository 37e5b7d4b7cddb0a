"""Compile programs for fake devices in a helper process, kept for reuse."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Self

from mhnb.core.program_replies import ArgumentLayout, CompileReply, CompileRequest
from mhnb.core.typed_json import decode_json, encode_json
from mhnb.errors import ClusterError, InvalidRequest
from mhnb.sharding.layout import Layout
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.report import Report, make_report, program_from_wire

MAX_DEVICES = 2048
"""Maximum number of fake CPU devices that XLA compiles for; with more it fails."""
_TIMEOUT_S = 120.0


class CompileClient:
    """Client of the process that compiles for fake devices; not thread-safe."""

    def __init__(self, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._replies: SimpleQueue[str] = SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                # Data that could not be written is no longer needed.
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def compile_program(
        self, program: str, layouts: Sequence[Layout], hosts: Mapping[int, str] | None = None
    ) -> Report:
        """Return a report of what a program would communicate.

        Args:
            program: `matmul`, `mlp`, `attention`, `module:function`, or an expression like `lambda x, w: x @ w`.
            layouts: of its arguments, all over one mesh.
            hosts: label by rank; without, each rank is a host.

        Raises:
            InvalidRequest: the program cannot be compiled for these layouts, or the mesh is too large.
            ClusterError: the helper process ended or did not answer in time.
        """
        return self._compile(layouts, hosts, program=program, to=None)

    def compile_reshard(self, before: Layout, after: Layout, hosts: Mapping[int, str] | None = None) -> Report:
        """Return a report of the collectives that a reshard would need.

        Raises:
            InvalidRequest: it cannot be compiled, or the mesh is too large.
            ClusterError: the helper process ended or did not answer in time.
        """
        return self._compile([before], hosts, program="", to=str(after.spec))

    def _compile(
        self, layouts: Sequence[Layout], hosts: Mapping[int, str] | None, *, program: str, to: str | None
    ) -> Report:
        mesh = _require_one_mesh(layouts)
        arrays = tuple(ArgumentLayout(layout.shape, layout.dtype.name, str(layout.spec)) for layout in layouts)
        reply = self._request(CompileRequest(mesh.axes, arrays, program, to))
        if reply.program is None:
            raise InvalidRequest(f"the program cannot be compiled for these arrays: {reply.error}", error=reply.error)
        # All fake devices belong to one process; the ranks that they represent are known here.
        ranks = tuple(device.rank for device in mesh.devices)
        known = hosts or {}
        return make_report(
            replace(program_from_wire(reply.program), ranks=ranks),
            {rank: known.get(rank, f"host{rank}") for rank in ranks},
        )

    def _request(self, request: CompileRequest) -> CompileReply:
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(encode_json(request) + "\n")
            process.stdin.flush()
            reply = self._replies.get(timeout=self._timeout_s)
        except KeyboardInterrupt:
            # Its reply would be taken for the reply to the next request.
            self.close()
            raise
        except BrokenPipeError:
            reply = ""
        except Empty as error:
            self.close()
            raise ClusterError(
                f"the compiler's helper process did not answer within {self._timeout_s:.0f} s"
            ) from error
        if not reply:
            self.close()
            raise ClusterError(
                "the compiler's helper process stopped unexpectedly; run the command again to start another"
            )
        try:
            return decode_json(reply, CompileReply)
        except ValueError as error:
            self.close()
            raise ClusterError(
                f"the compiler's helper process sent an unexpected answer: {error!s:.200}; run the command again to start another"
            ) from error

    def _start(self) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={MAX_DEVICES}"}
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "mhnb.rank.compile_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            # Ctrl-C in a terminal is for the caller, not for this process.
            start_new_session=True,
        )
        replies = self._replies = SimpleQueue()
        assert process.stdout is not None
        threading.Thread(target=_read, args=(process.stdout, replies), name="mhnb-plan", daemon=True).start()
        return process


def _read(stream: Any, replies: SimpleQueue[str]) -> None:
    for line in stream:
        replies.put(line)
    replies.put("")


def _require_one_mesh(layouts: Sequence[Layout]) -> MeshShape:
    meshes = {layout.mesh for layout in layouts}
    mesh = meshes.pop() if len(meshes) == 1 else None
    if mesh is None:
        raise InvalidRequest("the compiler needs all arrays on one mesh; give each array a spec on the same mesh")
    if len(mesh.devices) > MAX_DEVICES:
        raise InvalidRequest(
            f"the mesh has {len(mesh.devices)} devices, but programs are compiled for at most {MAX_DEVICES} fake devices."
            " The layouts are correct at any size; use a smaller mesh of the same form for the program"
        )
    return mesh


_shared: list[CompileClient] = []


def shared_compiler() -> CompileClient:
    """Return this process's compiler; it ends with the process."""
    if not _shared:
        _shared.append(CompileClient())
        atexit.register(close_shared)
    return _shared[0]


def close_shared() -> None:
    """End this process's compiler; the next request starts another."""
    for compiler in _shared:
        compiler.close()

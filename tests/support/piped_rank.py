"""One rank that answers over its pipes: `python -m tests.support.piped_rank RANK COUNT PORT DEVICES`.

Frames of `RankRequest` arrive on stdin and those of `RankReply` go to stdout, each with its length. The handler `run`
belongs to this program: it runs a cell in an IPython shell. With COUNT above 1 the ranks form a real JAX cluster.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import IO, Any

from mhnb.core.codec import decode, encode
from mhnb.core.messages import RankReply, RankRequest

_PREPARE = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
programs = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *a, **k: programs.append(name))
mesh = Mesh(np.array(jax.devices()).reshape(-1, 2), ("data", "model"))
def put(values, *axes):
    values = np.asarray(values)
    return jax.make_array_from_callback(values.shape, NamedSharding(mesh, P(*axes)), lambda index: values[index])
"""


def read_frames(stream: IO[bytes]) -> list[bytearray] | None:
    """Read one message; None at the end of the stream."""
    head = stream.read(4)
    if not head:
        return None
    sizes = struct.unpack(f"<{head[0]}Q", stream.read(8 * head[0]))
    frames = [bytearray(size) for size in sizes]
    for frame in frames:
        stream.readinto(frame)  # type: ignore[attr-defined]
    return frames


def write_frames(stream: IO[bytes], frames: list[Any]) -> None:
    """Write one message without joining its frames: the number of frames, their lengths, the frames."""
    assert len(frames) < 256
    stream.write(struct.pack("<I", len(frames)) + struct.pack(f"<{len(frames)}Q", *map(len, frames)))
    stream.writelines(frames)
    stream.flush()


def _start_jax(rank: int, count: int, port: int, devices: int) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["PJRT_NPROC"] = "32"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    import jax

    if count > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", count, rank, cluster_detection_method="deactivate")
    jax.devices()


def _run(shell: Any, source: str) -> Any:
    shell.user_ns["answer"] = None
    result = shell.run_cell(source, store_history=False)
    result.raise_error()
    return shell.user_ns.pop("answer")


def main() -> None:
    """Serve until stdin ends."""
    rank, count, port, devices = map(int, sys.argv[1:5])
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _start_jax(rank, count, port, devices)
    from IPython.core.interactiveshell import InteractiveShell

    from mhnb.rank.execution.interrupts import InterruptDelivery
    from mhnb.rank.requests.handlers import handle_request

    interrupts = InterruptDelivery()
    interrupts.install(())
    shell = InteractiveShell.instance()
    # An engine too has `__main__` as the user's module.
    shell.user_ns["rank"] = rank
    _run(shell, _PREPARE)
    while (frames := read_frames(source)) is not None:
        request = decode(frames)  # type: ignore[arg-type]
        assert isinstance(request, RankRequest)
        if request.handler == "run":
            reply = RankReply(rank, request.request_id, ok=True, value=_run(shell, request.arguments["source"]))
        else:
            reply = handle_request(request, shell.user_ns, rank=rank, shell=shell, interrupts=interrupts)
        write_frames(sink, encode(reply))


if __name__ == "__main__":
    main()

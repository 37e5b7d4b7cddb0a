"""Lesson 13: what data parallelism does in one step, and a checkpoint that is restored with another sharding."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.integration.lessons.figures.drawing import QUIET, Box, Cell, Drawing

_DEVICES = 4
_RATE = 0.1
_FIRST_ROW, _ROW = 92, 62
"""The middle of the first device's row, and the distance to the next."""


def _compute_step() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return x, y, each device's own gradient, the gradient and the new weight on each device."""
    import jax
    import jax.numpy as jnp

    mesh = jax.make_mesh(
        (_DEVICES,), ("data",), devices=jax.devices()[:_DEVICES], axis_types=(jax.sharding.AxisType.Auto,)
    )
    x = np.array([1, 1, 0, 2, 2, 2, 1, -1], np.float32)
    y = 3 * x

    def gradient(w: Any, x: Any, y: Any) -> Any:
        return jax.grad(lambda w: jnp.mean((w * x - y) ** 2))(w)

    def step(w: Any, x: Any, y: Any) -> Any:
        own = gradient(w, x, y)
        mean = jax.lax.pmean(own, "data")
        return own[None], mean[None], (w - _RATE * mean)[None]

    spec = jax.P("data")
    # Without the check, a gradient of the replicated weight is the device's own.
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(jax.P(), spec, spec), out_specs=spec, check_vma=False)
    own, mean, new = map(np.asarray, mapped(np.float32(1), x, y))
    # The lesson's step has no average: the gradient of the mean over the global batch is the same.
    assert np.allclose(mean, gradient(np.float32(1), x, y))
    return x, y, own, mean, new


def _format(value: float) -> str:
    """Format a number, with a minus sign in place of a hyphen."""
    return f"{value:g}".replace("-", "−")


def draw_step() -> Drawing:
    """Draw the batch, the gradients and the update of one step, one row for each device."""
    x, y, own, mean, new = _compute_step()
    drawing = Drawing(
        760,
        352,
        title="One step of data parallelism",
        description=(
            "Each of four devices has the same weight and two rows of the batch. It computes a gradient from its rows. "
            "An all-reduce gives each device the mean of the four, and each makes the same update."
        ),
    )
    heads = ((135, "weight"), (237, "its rows: x, y"), (362, "its gradient"), (597, "mean"), (700, "new weight"))
    for middle, words in heads:
        drawing.text(middle, 34, words, size="small", anchor="middle", style="quiet")
    reduce = Box(450, 62, 84, 4 * _ROW - 2)
    drawing.box(reduce, line=QUIET)
    for line, words in ((-10, "all-"), (10, "reduce")):
        drawing.text(reduce.middle[0], reduce.middle[1] + line, words, anchor="middle", style="strong")
    everyone = tuple(range(_DEVICES))
    for device in everyone:
        middle = _FIRST_ROW + device * _ROW
        top = middle - 17
        drawing.text(20, middle, f"device {device}")
        drawing.cells(114, top, [[Cell("1")]])
        pairs = zip(x[2 * device : 2 * device + 2], y[2 * device : 2 * device + 2], strict=True)
        row = [Cell(f"{_format(a)}, {_format(b)}", (device,)) for a, b in pairs]
        drawing.cells(179, top, [row], cell=Box(0, 0, 58, 34))
        drawing.arrow((300, middle), (334, middle))
        drawing.cells(341, top, [[Cell(_format(own[device]), (device,))]])
        drawing.arrow((390, middle), (448, middle))
        drawing.arrow((536, middle), (570, middle))
        drawing.cells(576, top, [[Cell(_format(mean[device]), everyone, is_new=True)]])
        drawing.arrow((624, middle), (672, middle))
        drawing.cells(679, top, [[Cell(_format(new[device]), everyone, is_new=True)]])
    drawing.text(
        20,
        333,
        f"The new weight is 1 − {_RATE:g} × mean. The mean has colours of all devices.",
        size="small",
        style="quiet",
    )
    return drawing


def _lay_out(mesh: Any) -> list[list[int]]:
    """Return the numbers that each device of the mesh holds, for an array of eight that is split along `data`."""
    import jax

    sharding = jax.sharding.NamedSharding(mesh, jax.P("data"))
    values = jax.make_array_from_callback((8,), sharding, np.arange(8).__getitem__)
    shards = sorted(values.addressable_shards, key=lambda shard: shard.device.id)
    return [np.asarray(shard.data).tolist() for shard in shards]


def draw_checkpoint() -> Drawing:
    """Draw an array on four devices, its numbers on disk, and the same array with another sharding."""
    import jax

    devices = np.array(jax.devices()[:_DEVICES])
    saved = _lay_out(jax.sharding.Mesh(devices, ("data",)))
    restored = _lay_out(jax.sharding.Mesh(devices.reshape(2, 2), ("data", "replica")))
    owner = {number: device for device, numbers in enumerate(saved) for number in numbers}
    drawing = Drawing(
        760,
        340,
        title="A checkpoint, written and read in shards",
        description=(
            "Four devices hold two of eight numbers each, and the process of each host writes those of its devices. "
            "After the restart the array has another sharding, and each device reads four numbers."
        ),
    )
    for x, words in ((20, "saved"), (322, "on disk"), (534, "restored")):
        drawing.text(x, 28, words, size="title", style="strong")
    cell = Box(0, 0, 30, 34)
    disk = Box(322, 108, 112, 108)
    drawing.box(disk, line=QUIET)
    for half in (0, 1):
        row = [Cell(str(number), (owner[number],)) for number in range(4 * half, 4 * half + 4)]
        drawing.cells(disk.x + 6, disk.y + 16 + 42 * half, [row], cell=Box(0, 0, 25, 34))
    for host in range(2):
        top = 50 + 132 * host
        drawing.host(Box(20, top, 206, 118), f"process {host}", number=2 * host)
        drawing.host(Box(534, top, 206, 118), f"process {host}", number=2 * host)
        for local in range(2):
            device, y = 2 * host + local, top + 28 + 43 * local
            for x, held in ((30, saved), (544, restored)):
                drawing.text(x, y + 17, f"device {device}", size="small")
                drawing.cells(x + 66, y, [[Cell(str(number), (owner[number],)) for number in held[device]]], cell=cell)
        middle = top + 59
        target = disk.middle[1] - 24 + 48 * host
        drawing.arrow((230, middle), (disk.x - 4, target))
        drawing.arrow((disk.right + 4, target), (530, middle))
    drawing.text(20, 321, "Colours: the device that wrote the number.", size="small", style="quiet")
    return drawing


FIGURES = {"13_step.svg": draw_step, "13_checkpoint.svg": draw_checkpoint}

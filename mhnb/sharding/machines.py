"""Machines that a user can plan for without having them.

It has their topologies and published figures. It knows neither JAX nor the compilers, which get `Machine.topology`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod

from mhnb.errors import InvalidRequest
from mhnb.sharding.layout import format_nbytes
from mhnb.sharding.mesh import format_axes, slice_order, split_over_slices

_SIZE = "[1-9][0-9]{0,4}"
_FORM = re.compile(rf"[a-z0-9-]+:(?P<sizes>{_SIZE}(?:x{_SIZE})*)(?:\*(?P<slices>{_SIZE}))?")
_MAX_DEVICES = 16384
KNOWN_SIZES: Mapping[int, tuple[str, ...]] = {
    2: ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    3: ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"),
}
"""Usual sizes of a TPU slice, by number of dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One kind of device, with published figures; they are None if unknown."""

    name: str
    """As users write it, such as `v5p`."""
    label: str
    platform: str
    """`tpu`, `cuda` or `cpu`."""
    nbytes: int | None = None
    """Memory of one device."""
    reserved: int = 0
    """Bytes that programs cannot use: on TPU the compiler's own reserve, on GPU an estimate for CUDA and its libraries."""
    flops: tuple[tuple[str, float], ...] = ()
    """Dense peak in flop/s by the operands' HLO type; f32 is computed as JAX does by default: bf16 on TPU, TF32 on GPU."""
    bandwidth: float | None = None
    """B/s of the device's memory."""
    link: float | None = None
    """B/s that a device sends in its NVLink domain, or along one axis of its slice: both directions of a ring."""
    network: float | None = None
    """B/s that a device sends out of its slice or NVLink domain, with the usual network cards."""
    link_name: str = ""
    network_name: str = ""
    source: str = ""
    """Where the figures are from."""
    dimensions: int = 2
    """How many sizes a machine has; on GPU and CPU they are hosts and devices per host."""
    largest: int | None = None
    """Most devices of a slice or NVLink domain; None if unlimited."""

    @property
    def available(self) -> int | None:
        """Bytes of one device that programs can use; None if unknown."""
        return None if self.nbytes is None else self.nbytes - self.reserved

    def peak(self, dtype: str) -> float | None:
        """Return the peak in flop/s for an HLO type; None if unknown."""
        kind = {"f16": "bf16", "u8": "s8"}.get(dtype, "f8" if dtype.startswith("f8") else dtype)
        peaks = dict(self.flops)
        # XLA converts operands of eight bits if the chip cannot multiply them.
        return peaks.get(kind, peaks.get("bf16") if kind == "f8" else None)


_SOURCES = {
    "tpu": "https://cloud.google.com/tpu/docs/{} and https://jax-ml.github.io/scaling-book/tpus (ICI; DCN of v4)",
    "a100": "https://www.nvidia.com/en-us/data-center/a100 and https://docs.nvidia.com/dgx/dgxa100-user-guide (network)",
    "cuda": "https://www.nvidia.com/en-us/data-center/{} and https://docs.nvidia.com/dgx-basepod (network)",
}
_KINDS = ("bf16", "f32", "f8", "s8")
# Name, label, bytes, reserved MiB, Tflop/s by kind (0 if the chip lacks it), memory GB/s, link GB/s, network Gbit/s, largest,
# vendor's page; f32 by https://docs.jax.dev/en/latest/201/precision.html. NVIDIA's figures with sparsity are halved.
# TPU: reserved is the memory minus "available HBM" of the compiler's error E1000. ICI is the book's, 10 % below Google's.
# GPU: reserved is what TensorFlow keeps free (MinSystemMemory in its gpu_device.cc). Bytes are those of XLA's targets.
_FIGURES = (
    ("v4", "TPU v4", 32 * 2**30, 1280, (275, 275, 0, 275), 1200, 90, 50, 4096, "v4"),
    ("v5e", "TPU v5e", 16 * 2**30, 256, (197, 197, 0, 393), 819, 90, 25, 256, "v5e"),
    ("v5p", "TPU v5p", 96 * 2**30, 277, (459, 459, 0, 918), 2765, 180, 50, 8960, "v5p"),
    ("v6e", "TPU v6e", 32 * 2**30, 779, (918, 918, 0, 1836), 1638, 180, 100, 256, "v6e"),
    ("a100", "NVIDIA A100-SXM4-80GB", 85100068864, 1536, (312, 156, 0, 624), 2039, 300, 200, 8, "a100"),
    ("a100-40", "NVIDIA A100-SXM4-40GB", 42331013120, 1536, (312, 156, 0, 624), 1555, 300, 200, 16, "a100"),
    ("h100", "NVIDIA H100 80GB HBM3", 84942979072, 1800, (989, 494.5, 1979, 1979), 3350, 450, 400, 8, "h100"),
    ("h200", "NVIDIA H200", 151397597184, 1800, (989, 494.5, 1979, 1979), 4800, 450, 400, 8, "h200"),
    ("b200", "NVIDIA B200", 191514411008, 1800, (2250, 1100, 4500, 4500), 8000, 900, 400, 8, "dgx-b200"),
)
# By the name's first letter, as in xla/backends/gpu/target_config/specs of https://github.com/openxla/xla: multiprocessors,
# FPUs and shared memory of each, shared memory of a block, L2 cache, GHz, compute capability.
_GPU_CORES = {
    "a": (108, 64, 167936, 166912, 41943040, 1.41, "major: 8"),
    "h": (132, 128, 233472, 232448, 52428800, 1.98, "major: 9 feature_extension: ACCELERATED_FEATURES"),
    "b": (148, 128, 233472, 232448, 132644864, 1.965, "major: 10 feature_extension: ACCELERATED_FEATURES"),
}


def _make_chips() -> dict[str, Chip]:
    """Return the known chips by name."""
    chips = {}
    for name, label, nbytes, reserved, tera, bandwidth, link, network, largest, page in _FIGURES:
        is_tpu = label.startswith("TPU")
        family = "tpu" if is_tpu else "a100" if page == "a100" else "cuda"
        chips[name] = Chip(
            name=name,
            label=label,
            platform="tpu" if is_tpu else "cuda",
            nbytes=nbytes,
            reserved=reserved * 2**20,
            flops=tuple((kind, peak * 1e12) for kind, peak in zip(_KINDS, tera, strict=True) if peak),
            bandwidth=bandwidth * 1e9,
            link=link * 1e9,
            network=network * 1e9 / 8,
            link_name="ICI" if is_tpu else "NVLink",
            network_name="DCN" if is_tpu else "InfiniBand",
            source=_SOURCES[family].format(page),
            dimensions=3 if name in ("v4", "v5p") else 2,
            largest=largest,
        )
    return {**chips, "cpu": Chip(name="cpu", label="CPU", platform="cpu")}


CHIPS: Mapping[str, Chip] = _make_chips()


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices of one kind, in the order of the compiler's devices."""

    text: str
    """As `parse_machine` reads it."""
    chip: Chip
    sizes: tuple[int, ...]
    """Chips of one TPU slice by dimension; on GPU and CPU the hosts and the devices per host."""
    slices: int
    """TPU slices, or NVLink domains or CPU hosts: the network connects them."""

    @property
    def device_count(self) -> int:
        """All devices; a TPU chip is one device."""
        return prod(self.sizes) * (self.slices if self.chip.platform == "tpu" else 1)

    @property
    def devices_per_host(self) -> int:
        """Devices of one process, as the compiler groups them."""
        if self.chip.platform == "tpu":
            return min(self.sizes[0], 2) * min(self.sizes[1], 2)
        return self.sizes[1]

    @property
    def host_count(self) -> int:
        """Processes that hold the devices."""
        return self.device_count // self.devices_per_host

    @property
    def rings(self) -> tuple[int, ...]:
        """Chips along each axis of a slice, 0 without wraparound; empty elsewhere."""
        if self.chip.platform != "tpu":
            return ()
        if self.chip.dimensions == 3:
            return tuple(size if all(each % 4 == 0 for each in self.sizes) else 0 for size in self.sizes)
        return tuple(size if size == 16 else 0 for size in self.sizes)

    @property
    def topology(self) -> dict[str, str | int | tuple[int, ...]]:
        """Arguments of `jax.experimental.topologies.get_topology_desc`; empty for CPU."""
        chip = self.chip
        if chip.platform == "tpu":
            shape = {"topology_name": self.text.partition("*")[0]}
            # Otherwise the compiler makes two devices of each v4 chip.
            megacore = {"chip_config_name": "megacore"} if chip.name == "v4" else {}
            host = (min(self.sizes[0], 2), min(self.sizes[1], 2), 1)
            # Up to libtpu 0.0.42 the compiler refuses a slice that is smaller than the host that it assumes.
            small = {} if host == (2, 2, 1) else {"chips_per_host_bounds": host}
            return {"platform": "tpu", "num_slices": self.slices, **shape, **megacore, **small}
        if chip.platform == "cuda":
            # Slices x hosts of each x devices: to this compiler, a slice is an NVLink domain.
            shape = {"topology_name": chip.name, "topology": f"{self.slices}x1x{self.sizes[1]}"}
            return {"platform": "cuda", "target_config": _format_target(chip), **shape}
        return {}

    def slice_index(self, position: int) -> int:
        """Return the slice, NVLink domain or CPU host of a device."""
        return position // (self.device_count // self.slices)

    def host_index(self, position: int) -> int:
        """Return the process that holds a device."""
        return position // self.devices_per_host

    def split(self, axes: Mapping[str, int]) -> tuple[int, ...] | None:
        """Return each axis's parts over the slices; None for one slice.

        Raises:
            InvalidRequest: the axes cannot be divided over the slices.

        >>> parse_machine("h100:8x8").split({"model": 4, "data": 16})
        (1, 8)
        """
        if self.slices == 1 or self.chip.platform == "cpu":
            return None
        factors = split_over_slices(tuple(axes.values()), slice_order(tuple(axes)), self.slices)
        if factors is None:
            unit = "slices" if self.chip.platform == "tpu" else "hosts"
            raise InvalidRequest(
                f"mesh ({format_axes(tuple(axes.items()))}) cannot be divided over {self.slices} {unit} of {self.text};"
                f" expected sizes whose common factors with {self.slices} multiply to it"
            )
        return factors

    def format_summary(self) -> str:
        """Format the machine and its main figures in one line.

        >>> parse_machine("h200:1x8").format_summary()
        '8 × NVIDIA H200 (1 host × 8), each 141.0 GiB, 989 TFLOP/s in bf16, NVLink 450 GB/s, InfiniBand 50 GB/s'
        """
        chip, is_tpu = self.chip, self.chip.platform == "tpu"
        layout = f"{self.host_count} {'host' if self.host_count == 1 else 'hosts'} × {self.devices_per_host}"
        if is_tpu:
            slices = f"{self.slices} slices of " if self.slices > 1 else ""
            layout = f"{slices}{'x'.join(map(str, self.sizes))}, {layout}"
        text = f"{self.device_count} × {chip.label} ({layout})"
        peak = chip.peak("bf16")
        if chip.nbytes is None or peak is None or chip.link is None or chip.network is None:
            return f"{text}, no published figures"
        return (
            f"{text}, each {format_nbytes(chip.nbytes)}, {peak / 1e12:.4g} TFLOP/s in bf16, "
            f"{chip.link_name} {chip.link / 1e9:.3g} GB/s{' per axis' if is_tpu else ''}, "
            f"{chip.network_name} {chip.network / 1e9:.3g} GB/s"
        )


def _format_target(chip: Chip) -> str:
    """Format a GPU as the `GpuTargetConfigProto` that XLA compiles for."""
    cores, fpus, core_memory, block_memory, l2_cache, clock, capability = _GPU_CORES[chip.name[0]]
    return (
        f"gpu_device_info {{ core_count: {cores} fpus_per_core: {fpus} shared_memory_per_core: {core_memory} "
        f"shared_memory_per_block: 49152 shared_memory_per_block_optin: {block_memory} l2_cache_size: {l2_cache} "
        f"clock_rate_ghz: {clock} memory_bandwidth: {chip.bandwidth or 0:.0f} device_memory_size: {chip.nbytes} "
        "threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 "
        "block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 registers_per_core_limit: 65536 "
        f"registers_per_block_limit: 65536 cuda_compute_capability {{ {capability} }} }} "
        f'platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }} device_description_str: "{chip.label}"'
    )


def parse_machine(text: str) -> Machine:
    """Parse a machine: `v5p:4x4x4`, `v5e:16x16*2` (slices), `h100:8x8` (hosts x GPUs).

    Raises:
        InvalidRequest: it cannot be parsed, or no such machine exists.

    >>> machine = parse_machine("v5e:16x16*2")
    >>> machine.device_count, machine.host_count, machine.slice_index(256)
    (512, 128, 1)
    """
    found = _FORM.fullmatch(re.sub(r"\s", "", text).lower().replace("×", "x"))
    name = text.partition(":")[0].strip().lower()
    if name not in CHIPS:
        meant = "".join(f" (did you mean {chip}?)" for chip in get_close_matches(name, CHIPS, 1))
        raise InvalidRequest(f"unknown chip {name!r}{meant}; expected one of {', '.join(CHIPS)}")
    if found is None:
        forms = "v5p:4x4x4, v5e:16x16*2 (two slices) or h100:8x8 (hosts x GPUs)"
        raise InvalidRequest(f"cannot read machine {text!r}; expected a form such as {forms}")
    chip, sizes = CHIPS[name], tuple(int(size) for size in found["sizes"].split("x"))
    slices = int(found["slices"] or 1)
    if problem := _find_problem(chip, sizes, slices):
        raise InvalidRequest(f"machine {text!r} {problem}")
    suffix = f"*{slices}" if slices > 1 else ""
    slices = slices if chip.platform == "tpu" else sizes[0]
    return Machine(f"{name}:{found['sizes']}{suffix}", chip, sizes, slices)


def _find_problem(chip: Chip, sizes: tuple[int, ...], slices: int) -> str:
    """Describe why no such machine exists; empty string if it may."""
    if (count := prod(sizes) * slices) > _MAX_DEVICES:
        return f"has {count} devices; expected at most {_MAX_DEVICES}"
    if chip.platform != "tpu":
        if len(sizes) != 2 or slices > 1:
            return f"is not of the form hosts x devices per host; expected for example {chip.name}:8x8"
        is_too_large = chip.largest and sizes[1] > chip.largest
        return f"has {sizes[1]} GPUs per host; expected at most {chip.largest}" if is_too_large else ""
    known = KNOWN_SIZES[chip.dimensions]
    expected = f"expected for example {', '.join(known)}; for several slices {chip.name}:{known[-1]}*2"
    if len(sizes) != chip.dimensions:
        return f"has {len(sizes)} sizes, but a {chip.name} slice has {chip.dimensions}; {expected}"
    # A longer side of v5e makes the compiler abort its process.
    if prod(sizes) > (chip.largest or 0) or (chip.dimensions == 2 and max(sizes) > 16):
        largest = "16x16" if chip.dimensions == 2 else chip.largest
        return f"is larger than a {chip.name} slice of {largest} chips; {expected}"
    if sizes[0] % 2 + sizes[1] % 2 and not (max(sizes[:2]) <= 2 and prod(sizes[2:]) == 1):
        return f"has an odd first or second size, but a host has 2 x 2 chips; {expected}"
    return ""

"""Machines without having them: recorded topologies of the compilers, published figures, and refusals."""

from __future__ import annotations

import re

import pytest

from mhnb.errors import InvalidRequest
from mhnb.sharding.machines import CHIPS, KNOWN_SIZES, Chip, parse_machine

# Machine -> devices, processes and slices of `get_topology_desc(**topology)`, with jax 0.10.2, libtpu 0.0.52 and
# jax-cuda12-plugin 0.10.2. `process_index` and `slice_index` rose with the position in each of them.
RECORDED = {
    "v4:1x1x1": (1, 1, 1),
    "v4:2x2x1": (4, 1, 1),
    "v4:4x4x4": (64, 16, 1),
    "v4:2x2x2*2": (16, 4, 2),
    "v4:12x12x24": (3456, 864, 1),
    "v5p:1x1x1": (1, 1, 1),
    "v5p:2x1x1": (2, 1, 1),
    "v5p:2x2x3": (12, 3, 1),
    "v5p:4x2x2": (16, 4, 1),
    "v5p:4x4x4": (64, 16, 1),
    "v5p:4x4x6*2": (192, 48, 2),
    "v5p:16x16x24": (6144, 1536, 1),
    "v5e:1x2": (2, 1, 1),
    "v5e:2x2": (4, 1, 1),
    "v5e:2x4": (8, 2, 1),
    "v5e:6x6": (36, 9, 1),
    "v5e:16x16": (256, 64, 1),
    "v5e:16x16*2": (512, 128, 2),
    "v6e:1x1": (1, 1, 1),
    "v6e:8x16": (128, 32, 1),
    "v6e:16x16*3": (768, 192, 3),
    "a100:2x8": (16, 2, 2),
    "a100-40:2x16": (32, 2, 2),
    "h100:1x1": (1, 1, 1),
    "h100:1x8": (8, 1, 1),
    "h100:8x8": (64, 8, 8),
    "h200:8x8": (64, 8, 8),
    "b200:3x5": (15, 3, 3),
}
KNOWN = [
    f"{chip.name}:{sizes}"
    for chip in CHIPS.values()
    if chip.platform == "tpu"
    for sizes in KNOWN_SIZES[chip.dimensions]
]


@pytest.mark.parametrize("text", RECORDED)
def test_counts_are_those_of_the_compilers(text: str) -> None:
    """Devices, processes and slices are those of the compiler's own topology; a GPU's slice is its host."""
    machine = parse_machine(text)
    assert (machine.device_count, machine.host_count, machine.slices) == RECORDED[text]
    assert machine.text == text


@pytest.mark.parametrize("text", [*RECORDED, "cpu:4x2"])
def test_each_host_is_in_one_slice(text: str) -> None:
    """Positions fill one host after the other and one slice after the other, all of the same size."""
    machine = parse_machine(text)
    hosts = [machine.host_index(position) for position in range(machine.device_count)]
    slices = [machine.slice_index(position) for position in range(machine.device_count)]
    assert hosts == sorted(hosts)
    assert slices == sorted(slices)
    assert {hosts.count(host) for host in set(hosts)} == {machine.devices_per_host}
    assert len(set(slices)) == machine.slices
    assert len(set(zip(hosts, slices, strict=True))) == machine.host_count


def test_devices_of_cpu_hosts() -> None:
    """A CPU machine has hosts and devices, but no figures and no topology."""
    machine = parse_machine("cpu:4x2")
    assert (machine.device_count, machine.host_count, machine.devices_per_host, machine.slices) == (8, 4, 2, 4)
    assert [machine.slice_index(position) for position in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert machine.topology == {}
    chip = machine.chip
    assert (chip.nbytes, chip.available, chip.bandwidth, chip.link, chip.network, chip.peak("f32")) == (None,) * 6


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (" V5E : 16 x 16 * 2", "v5e:16x16*2"),
        ("v5p:2×2×1", "v5p:2x2x1"),
        ("v5e:4x4*1", "v5e:4x4"),
    ],
)
def test_case_blanks_and_signs_do_not_matter(written: str, text: str) -> None:
    """A machine has one text, however it is written."""
    assert parse_machine(written) == parse_machine(text)
    assert parse_machine(written).text == text


@pytest.mark.parametrize("text", KNOWN)
def test_known_sizes_are_accepted(text: str) -> None:
    """Each size that a message proposes is one that exists."""
    assert parse_machine(text).text == text


def test_topologies_are_arguments_for_jax() -> None:
    """The compilers get the slice's name and count, or slices x hosts x GPUs and the GPU's description."""
    assert parse_machine("v5e:16x16*2").topology == {"platform": "tpu", "topology_name": "v5e:16x16", "num_slices": 2}
    # A slice that is smaller than a host says so.
    assert parse_machine("v5e:1x2").topology["chips_per_host_bounds"] == (1, 2, 1)
    assert parse_machine("v4:2x2x1").topology["chip_config_name"] == "megacore"
    gpus = parse_machine("h100:8x4").topology
    assert (gpus["platform"], gpus["topology_name"], gpus["topology"]) == ("cuda", "h100", "8x1x4")


@pytest.mark.parametrize(
    "chip", [chip for chip in CHIPS.values() if chip.platform == "cuda"], ids=lambda chip: chip.name
)
def test_target_describes_the_gpu(chip: Chip) -> None:
    """The description that XLA reads has the chip's memory, bandwidth and label, and balanced braces."""
    target = str(parse_machine(f"{chip.name}:1x8").topology["target_config"])
    fields = dict(re.findall(r"(\w+): (\S+)", target))
    assert int(fields["device_memory_size"]) == chip.nbytes
    assert int(fields["memory_bandwidth"]) == chip.bandwidth
    major = {"a": 8, "h": 9, "b": 10}[chip.name[0]]
    assert f"cuda_compute_capability {{ major: {major} " in target
    assert target.endswith(f'device_description_str: "{chip.label}"')
    assert target.count("{") == target.count("}") == 3


@pytest.mark.parametrize("chip", [chip for chip in CHIPS.values() if chip.name != "cpu"], ids=lambda chip: chip.name)
def test_each_chip_has_figures_and_a_source(chip: Chip) -> None:
    """Each figure is positive, in a plausible order, and the pages that state it are named."""
    assert chip.source.startswith("https://")
    assert "\n" not in chip.source
    figures = (chip.nbytes or 0, chip.available or 0, chip.bandwidth or 0, chip.link or 0, chip.network or 0)
    nbytes, available, bandwidth, link, network = figures
    assert nbytes > available > 0.9 * nbytes
    assert dict(chip.flops)["s8"] >= dict(chip.flops)["bf16"] >= dict(chip.flops)["f32"] > 1e14
    assert bandwidth > link > network > 1e9


# The book's tables: https://jax-ml.github.io/scaling-book/tpus and .../gpus, rounded there to two or three digits.
BOOK = {
    "v4": (32, 1.2e12, 2.75e14, 2.75e14, 9e10),
    "v5p": (96, 2.8e12, 4.59e14, 9.18e14, 1.8e11),
    "v5e": (16, 8.1e11, 1.97e14, 3.94e14, 9e10),
    "v6e": (32, 1.6e12, 9.20e14, 1.84e15, 1.8e11),
    "a100": (80, 2.0e12, 3.1e14, 6.2e14, 3e11),
    "h100": (80, 3.4e12, 9.9e14, 2.0e15, 4.5e11),
    "h200": (141, 4.8e12, 9.9e14, 2.0e15, 4.5e11),
    "b200": (192, 8.0e12, 2.3e15, 4.5e15, 9e11),
}


@pytest.mark.parametrize("name", BOOK)
def test_figures_agree_with_the_scaling_book(name: str) -> None:
    """Memory, its bandwidth, peaks and links agree with a second source within its roundings."""
    chip = CHIPS[name]
    memory, bandwidth, bf16, s8, link = BOOK[name]
    unit = 2**30 if chip.platform == "tpu" else 1e9
    assert chip.nbytes == pytest.approx(memory * unit, rel=0.08)
    assert (chip.bandwidth, chip.peak("bf16"), chip.peak("s8")) == pytest.approx((bandwidth, bf16, s8), rel=0.03)
    assert chip.link == link


@pytest.mark.parametrize(("name", "stated"), [("v4", 30.75), ("v5e", 15.75), ("v5p", 95.73), ("v6e", 31.24)])
def test_available_memory_is_what_the_compiler_states(name: str, stated: float) -> None:
    """A TPU's available memory is that of libtpu's error E1000, "exceeds available HBM (15.75G)"."""
    available = CHIPS[name].available
    assert available is not None
    assert round(available / 2**30, 2) == stated


def test_hosts_share_their_network() -> None:
    """The network per chip, times the chips of a host, is the published network of the host in Gbit/s."""
    hosts = {"v4": (4, 200), "v5p": (4, 200), "v5e": (8, 200), "v6e": (8, 800), "a100": (8, 1600), "h100": (8, 3200)}
    for name, (chips, gigabits) in hosts.items():
        assert CHIPS[name].network == gigabits * 1e9 / 8 / chips


def test_peak_of_types() -> None:
    """Types of the same width share a peak; f8 falls back to bf16, and other types are unknown."""
    assert CHIPS["h100"].peak("f8e4m3fn") == CHIPS["h100"].peak("u8") == 1979e12
    assert CHIPS["a100"].peak("f8e5m2") == CHIPS["a100"].peak("f16") == 312e12
    assert CHIPS["a100"].peak("f32") == 156e12
    assert CHIPS["v5p"].peak("f32") == CHIPS["v5p"].peak("bf16")
    assert CHIPS["v5e"].peak("f64") is None


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        (
            "h100:8x8",
            "64 × NVIDIA H100 80GB HBM3 (8 hosts × 8), each 79.1 GiB, 989 TFLOP/s in bf16, NVLink 450 GB/s, InfiniBand 50 GB/s",
        ),
        (
            "v5e:16x16*2",
            "512 × TPU v5e (2 slices of 16x16, 128 hosts × 4), each 16.0 GiB, 197 TFLOP/s in bf16, ICI 90 GB/s per axis, DCN 3.12 GB/s",
        ),
        (
            "v5p:2x2x1",
            "4 × TPU v5p (2x2x1, 1 host × 4), each 96.0 GiB, 459 TFLOP/s in bf16, ICI 180 GB/s per axis, DCN 6.25 GB/s",
        ),
        ("cpu:4x2", "8 × CPU (4 hosts × 2), no published figures"),
    ],
)
def test_summary(text: str, summary: str) -> None:
    """One line has devices, hosts, memory, peak and links with their units."""
    assert parse_machine(text).format_summary() == summary


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h1000:8x8", "unknown chip 'h1000' (did you mean h100?); expected one of v4, v5e, v5p, v6e, a100, "),
        ("", "unknown chip ''; expected one of"),
        ("v5p", "cannot read machine 'v5p'; expected a form such as v5p:4x4x4, v5e:16x16*2 (two slices) or h100:8x8"),
        ("v5p:2x2x1*", "cannot read machine"),
        ("v5e:٢x2", "cannot read machine"),
        ("v5e:-2x2", "cannot read machine"),
        ("v5e:1000000x2", "cannot read machine"),
        ("v5p:4x4", "has 2 sizes, but a v5p slice has 3; expected for example 2x2x1, 2x2x2, "),
        ("v5e:2x2x1", "has 3 sizes, but a v5e slice has 2; expected for example 1x1, 2x2, "),
        ("v5e:3x3", "has an odd first or second size, but a host has 2 x 2 chips; expected for example 1x1, 2x2, "),
        ("v5e:1x8", "has an odd first or second size"),
        ("v5p:1x1x2", "has an odd first or second size"),
        ("v5e:8x32", "is larger than a v5e slice of 16x16 chips; expected for example 1x1, "),
        ("v4:16x16x18", "is larger than a v4 slice of 4096 chips"),
        ("v5e:0x2", "cannot read machine"),
        ("v5e:2x2*0", "cannot read machine"),
        ("v5e:16x16*99", "has 25344 devices; expected at most 16384"),
        ("h100:8", "is not of the form hosts x devices per host; expected for example h100:8x8"),
        ("h100:8x8*2", "is not of the form hosts x devices per host"),
        ("h100:2x16", "has 16 GPUs per host; expected at most 8"),
        ("cpu:4", "is not of the form hosts x devices per host"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    """A machine that does not exist is refused with what was typed, the reason and known ones."""
    with pytest.raises(InvalidRequest) as refused:
        parse_machine(text)
    assert message in str(refused.value)
    assert text.partition(":")[0] in str(refused.value)


def test_rings_of_a_slice_need_wraparound() -> None:
    """A v5e slice wraps along a side of 16 chips, a v5p slice if it is made of whole cubes of 4 x 4 x 4."""
    assert parse_machine("v5e:16x16").rings == (16, 16)
    assert parse_machine("v5e:8x16").rings == (0, 16)
    assert parse_machine("v5p:4x4x8").rings == (4, 4, 8)
    assert parse_machine("v5p:2x2x4").rings == (0, 0, 0)
    assert parse_machine("h100:8x8").rings == ()

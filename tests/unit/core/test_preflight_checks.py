"""Preflight findings: each fault of a host is found and named with its fix, and good hosts have no findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mhnb.core.preflight_checks import build_preflight_report
from mhnb.core.preflight_facts import (
    Disk,
    Endpoint,
    Finding,
    Gpu,
    HostChecks,
    HostFacts,
    PreflightReport,
    Requirements,
)
from mhnb.errors import HostUnreachable

VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "mhnb": "0.1.0", "numpy": "2.4.6"}
ENDPOINTS = (
    Endpoint("link", None, "10.0.0.254", 7000),
    Endpoint("hub", None, "10.0.0.254", 7001),
    Endpoint("coordinator", 0, "10.0.0.1", 8476),
)
REQUIREMENTS = Requirements(ENDPOINTS, devices=2, mhnb_version="0.1.0")


def probe(at: int, **changed: Any) -> HostChecks:
    """Return the probe of a good host, with the given changes."""
    name, address = "abcd"[at], f"10.0.0.{at + 1}"
    facts = HostFacts(
        hostname=name,
        python="3.11.7",
        executable="/py",
        versions=VERSIONS,
        name_addresses=(address,),
        disks=(Disk("logs", "/logs", 40 * 10**9), Disk("temporary files", "/tmp", 10**9)),
        boot_id=f"boot {at}",
    )
    reached = {"link": "", "hub": "", "coordinator": ""} | {f"peer {other}": "" for other in range(3) if other != at}
    return HostChecks(name, address, replace(facts, **changed), clock_offset=(0.02, 0.01), connect_errors=reached)


def build_report(*probes: HostChecks, requirements: Requirements = REQUIREMENTS) -> PreflightReport:
    """Build the report of these probes, filled up with good hosts to three."""
    return build_preflight_report([*probes, *(probe(at) for at in range(len(probes), 3))], requirements)


def only_finding(report: PreflightReport) -> Finding:
    """Return the only finding."""
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


def cell_at(report: PreflightReport, header: str, at: int) -> tuple[str, str | None]:
    """Return a cell's text and level."""
    report_cell = next(column for column in report.columns if column.header == header).cells[at]
    return report_cell.text, report_cell.level


def test_good_hosts_have_no_findings() -> None:
    """There are no findings, and every check has a column."""
    report = build_report()
    assert (report.ok, report.findings) == (True, ())
    assert [column.header for column in report.columns] == [
        "login", "python", "jax", "mhnb", "devices", "link", "hub", "port 8476", "peers", "name→address", "clock", "disk",
    ]  # fmt: skip
    assert [column.cells[2].text for column in report.columns] == [
        "ok", "3.11.7", "0.10.2", "0.1.0", "2 cpu", "ok", "ok", "ok", "ok", "10.0.0.3", "+0.0 s", "40 GB",
    ]  # fmt: skip


def test_host_without_login_has_no_other_cells() -> None:
    """The finding quotes ssh, without the name of a log that was removed; the host has no cells in the other columns."""
    failure = HostUnreachable("b: refused the login: denied\n  ssh-copy-id\n  log /x", host="b", kind="login")
    report = build_report(probe(0), HostChecks("b", failure=failure))
    assert only_finding(report) == Finding("failure", "login", ("b",), "b: refused the login: denied", "ssh-copy-id")
    assert [column.header for column in report.columns if 1 in column.cells] == ["login"]


FAULTS: list[tuple[Mapping[str, Any], str, str, str]] = [
    ({"python": "3.9.2"}, "python", "b has Python 3.9.2 (/py), but mhnb needs 3.11 or newer", "choose the same version"),
    ({"python": "3.12.1"}, "python", "b has Python 3.12.1, the other hosts have 3.11", "the same version on b"),
    ({"versions": VERSIONS | {"jax": "0.10.1"}}, "jax", "the other hosts have 0.10.2", "/py -m pip install 'jax==0.10.2'"),
    ({"versions": VERSIONS | {"jax": None}}, "jax", "jax is not installed on b for Python /py", "pip install 'jax==0.10.2'"),
    ({"versions": VERSIONS | {"jaxlib": "0.10.1"}}, "jaxlib", "b has jaxlib 0.10.1, the other hosts have 0.10.2", "'jaxlib==0.10.2'"),
    ({"versions": VERSIONS | {"mhnb": "0.2.0"}}, "mhnb", "b has mhnb 0.2.0, this notebook has 0.1.0", "'mhnb==0.1.0'"),
    ({"versions": VERSIONS | {"mhnb": None}}, "mhnb", "mhnb is not installed on b for Python /py", "'mhnb==0.1.0'"),
    (
        {"disks": (Disk("logs", "/logs", 0, "No space left on device"),)},
        "disk",
        "b cannot write logs to /logs: No space left on device",
        "free space there, or choose another folder with MHNB_HOME",
    ),
    ({"disks": (Disk("shared memory", "/dev/shm", 5 << 20),)}, "disk", "b cannot write shared memory to /dev/shm: 5 MB free", "free space"),
    ({"unknown_flags": ("xla_x",)}, "environment", "XLA_FLAGS on b has --xla_x, which its jaxlib 0.10.2 does not know", "remove it"),
    (
        {"environment": {"XLA_FLAGS": "--xla_a=1"}},
        "environment",
        "XLA_FLAGS is '--xla_a=1' on b, but '' on the other hosts: ranks that compile differently",
        "to the same value",
    ),
    ({"environment": {"JAX_ENABLE_X64": "1"}}, "environment", "JAX_ENABLE_X64 is '1' on b, but '' on the other hosts", "to the same value"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "check", "text", "cure"), FAULTS)
def test_a_failure_of_one_host_is_found(changed: Mapping[str, Any], check: str, text: str, cure: str) -> None:
    """One faulty host is one failure, with the host, the value, what was expected, and what to do."""
    finding = only_finding(build_report(probe(0), probe(1, **changed)))
    assert (finding.level, finding.check, finding.hosts) == ("failure", check, ("b",))
    assert text in finding.text
    assert cure in finding.fix


HARMLESS: list[Mapping[str, Any]] = [
    {"python": "3.11.9"},
    {"versions": VERSIONS | {"numpy": "2.3.0"}},
    {"environment": {"JAX_COMPILATION_CACHE_DIR": "/x", "JAX_LOGGING_LEVEL": "INFO"}},
    {"environment": {"http_proxy": "p:1", "no_proxy": "10.0.0.1,10.0.0.2,10.0.0.3"}},
    {"environment": {"http_proxy": "p:1", "no_proxy": "*"}},
    {"name_addresses": ("127.0.1.1", "10.0.0.2")},
]


@pytest.mark.parametrize("changed", HARMLESS, ids=str)
def test_harmless_differences_are_not_reported(changed: Mapping[str, Any]) -> None:
    """Differences that do not affect any rank are not reported, because false alarms cost trust."""
    assert build_report(probe(0), probe(1, **changed)).findings == ()


NON_FATAL: list[tuple[Mapping[str, Any], str, str, str]] = [
    ({"name_addresses": ("127.0.1.1",)}, "warning", "b's name resolves to loopback", "mhnb will use 10.0.0.2 instead"),
    (
        {"name_addresses": (), "name_error": "not known"},
        "warning",
        "b cannot resolve its own name 'b' (not known)",
        "/etc/hosts on b",
    ),
    ({"disks": (Disk("logs", "/logs", 500 << 20),)}, "warning", "b has 500 MB left for logs in /logs", "free space"),
    (
        {"environment": {"http_proxy": "p:1", "no_proxy": "10.0.0.1"}},
        "note",
        "http_proxy is set on b",
        "from the proxy",
    ),
]


@pytest.mark.parametrize(("changed", "level", "text", "cure"), NON_FATAL)
def test_faults_that_allow_a_start_are_not_failures(
    changed: Mapping[str, Any], level: str, text: str, cure: str
) -> None:
    """Faults that mhnb fixes itself, and faults that only may cause harm, are reported but do not stop a start."""
    report = build_report(probe(0), probe(1, **changed))
    finding = only_finding(report)
    assert (report.ok, finding.level, finding.hosts) == (True, level, ("b",))
    assert text in finding.text
    assert cure in finding.fix


def test_conflicting_xla_flags_are_warnings() -> None:
    """Equal XLA_FLAGS that contain a flag twice, or another number of devices, cause a warning."""
    flags = "--xla_force_host_platform_device_count=8 --xla_a=1 --xla_a=2"
    hosts = [probe(at, environment={"XLA_FLAGS": flags}) for at in range(3)]
    texts = [finding.text for finding in build_report(*hosts).findings]
    assert build_report(*hosts).ok
    assert "XLA_FLAGS on a has --xla_a twice, as 1 and as 2: the last one is used" in texts
    assert "XLA_FLAGS on c requests 8 CPU devices, but this start requests 2" in texts


# -- devices


def _gpu_hosts(*counts: int) -> list[HostChecks]:
    return [
        probe(at, gpus=tuple(Gpu("H200", f"{at}.{gpu}") for gpu in range(count))) for at, count in enumerate(counts)
    ]


def test_unequal_devices_are_found() -> None:
    """A host whose devices differ from the others' is named."""
    requirements = replace(REQUIREMENTS, devices=None)
    report = build_report(*_gpu_hosts(2, 2, 1), requirements=requirements)
    assert only_finding(report).text.startswith("c has 1 gpu (H200), the other hosts have 2 gpu (H200). Every")
    assert [cell_at(report, "devices", at) for at in range(3)] == [
        ("2 gpu", None),
        ("2 gpu", None),
        ("1 gpu", "failure"),
    ]
    assert build_report(*_gpu_hosts(2, 2, 2), requirements=requirements).ok
    assert only_finding(build_report(probe(0), probe(1), probe(2, tpus=4), requirements=requirements)).text.startswith(
        "c has 4 tpu, the other hosts have 1 cpu"
    )


def test_different_and_shared_gpus_are_found() -> None:
    """The same number of GPUs of another model is found, and one GPU that two hosts see, as containers may."""
    requirements = replace(REQUIREMENTS, devices=None)
    other = probe(2, gpus=(Gpu("A100", "x"), Gpu("A100", "y")))
    assert only_finding(build_report(*_gpu_hosts(2, 2), other, requirements=requirements)).text.startswith(
        "c has 2 gpu (A100), the other hosts have"
    )
    shared = probe(2, gpus=(Gpu("H200", "2.0"), Gpu("H200", "0.1")))
    assert (
        only_finding(build_report(*_gpu_hosts(2, 2), shared, requirements=requirements)).text
        == "a and c have the same GPU (0.1)"
    )


def test_tasks_that_share_a_gpu_are_found() -> None:
    """Two tasks of a launcher on one machine that see the same GPU are found; simulated devices do not use it."""
    (first,) = _gpu_hosts(2)
    assert first.facts is not None
    report = build_report(
        replace(first, colocated=(first.facts,)),
        *_gpu_hosts(0, 2, 2)[1:],
        requirements=replace(REQUIREMENTS, devices=None),
    )
    assert only_finding(report).text == "2 tasks on a have the same GPU (0.0)"
    assert build_report(replace(first, colocated=(first.facts,))).ok


@pytest.mark.parametrize(
    ("pool", "devices", "count"), [("2", 2, 1), ("4", 2, 0), ("", 2, 0), ("1", 1, 0), ("1", None, 0)]
)
def test_too_small_execution_pool_is_a_failure(pool: str, devices: int | None, count: int) -> None:
    """A user's PJRT_NPROC that is too small for a rank's devices would make correct programs hang."""
    report = build_report(requirements=replace(REQUIREMENTS, pjrt_nproc=pool, devices=devices))
    assert len(report.failures) == count
    assert all(finding.text.startswith(f"PJRT_NPROC is {pool} here") for finding in report.findings)


def test_gpus_that_cannot_be_divided_are_a_failure() -> None:
    """Three GPUs cannot be divided equally between two ranks, but four can."""
    requirements = replace(REQUIREMENTS, devices=None, ranks_per_host=2)
    assert next(
        finding.text for finding in build_report(*_gpu_hosts(3, 3, 3), requirements=requirements).findings
    ).startswith("a has 3 gpu for 2")
    assert build_report(*_gpu_hosts(4, 4, 4), requirements=requirements).ok


def test_two_names_of_one_machine_are_found() -> None:
    """Two names with the same running system, hostname and address would be one host for two ranks."""
    twin = replace(probe(0), name="a.local", connect_errors=probe(1).connect_errors)
    assert only_finding(build_report(probe(0), twin)).text == "a and a.local are the same machine (a, 10.0.0.1)"


# -- the network


def _unreachable_from(at: int, **why: str) -> HostChecks:
    return replace(
        probe(at),
        connect_errors={**probe(at).connect_errors, **{name.replace("_", " "): text for name, text in why.items()}},
    )


def test_unreachable_port_is_named_with_its_owner() -> None:
    """Hosts that cannot reach the coordinator for the same reason share one finding; the cells show the reason."""
    report = build_report(
        probe(0), _unreachable_from(1, coordinator="no answer"), _unreachable_from(2, coordinator="no answer")
    )
    finding = only_finding(report)
    assert finding.text == (
        "b and c cannot reach JAX's coordinator on a at 10.0.0.1:8476: no answer (a firewall that drops packets, or a wrong address)"
    )
    assert finding.fix.startswith("open TCP port 8476 in the firewall of a for the cluster's hosts")
    assert cell_at(report, "port 8476", 1) == ("no answer", "failure")
    assert cell_at(report, "port 8476", 0) == ("ok", None)


def test_port_in_use_hides_connection_errors() -> None:
    """If the owner cannot listen on the port, that is the only finding."""
    hosts = [replace(probe(at), connect_errors={"link": "", "hub": ""}) for at in range(3)]
    report = build_report(replace(hosts[0], listen_errors={"coordinator": "Address already in use"}), *hosts[1:])
    assert only_finding(report).text == "a cannot listen at 10.0.0.1:8476 for JAX's coordinator: Address already in use"
    assert "ss -ltnp 'sport = :8476'" in only_finding(report).fix
    assert cell_at(report, "port 8476", 0) == ("taken", "failure")


def test_notebook_behind_nat_is_explained() -> None:
    """If the login came from another address than the one that was tried, the fix says so."""
    hosts = [replace(probe(at), facts=None, connect_errors={"link": "no answer"}) for at in range(3)]
    finding = only_finding(build_report(replace(hosts[0], login_address="1.2.3.4"), *hosts[1:]))
    assert finding.text.startswith(
        "a, b and c cannot reach this notebook on this machine at 10.0.0.254:7000: no answer"
    )
    assert "the login came from 1.2.3.4, so there is a jump host or NAT between" in finding.fix
    assert "NAT" not in only_finding(build_report(*(replace(h, login_address="10.0.0.254") for h in hosts))).fix


def test_hosts_that_cannot_reach_each_other_are_named() -> None:
    """The finding names each unreachable host and the hosts that cannot reach it."""
    report = build_report(_unreachable_from(0, peer_1="no answer"), _unreachable_from(1, peer_0="no answer"))
    assert "b cannot be reached from a; a cannot be reached from b: no answer. CPU" in only_finding(report).text
    assert [cell_at(report, "peers", at) for at in range(3)] == [
        ("not b", "failure"),
        ("not a", "failure"),
        ("ok", None),
    ]


def test_host_that_no_other_can_reach_is_one_finding() -> None:
    """A host that no other host can reach takes one sentence, however many hosts there are."""
    report = build_report(probe(0), _unreachable_from(1, peer_0="no answer"), _unreachable_from(2, peer_0="no answer"))
    assert only_finding(report).text.startswith("a cannot be reached from any other host: no answer. CPU collectives")


@pytest.mark.parametrize(
    ("clock", "shown", "level"),
    [
        ((3600.0, 0.1), "+3600.0 s", "warning"),
        ((-6.0, 0.5), "-6.0 s", "warning"),
        ((5.1, 0.5), "+5.1 s", None),
        ((-0.3, 0.0), "-0.3 s", None),
    ],
)
def test_clock_offset_is_a_warning(clock: tuple[float, float], shown: str, level: str | None) -> None:
    """More than five seconds, beyond the duration of the request, is a warning, because it confuses users but not ranks."""
    report = build_report(probe(0), replace(probe(1), clock_offset=clock))
    assert cell_at(report, "clock", 1) == (shown, level)
    assert report.ok
    assert bool(report.findings) == (level is not None)


def test_failures_come_first() -> None:
    """Failures come before other findings."""
    report = build_report(probe(0, name_addresses=("127.0.1.1",)), probe(1, versions=VERSIONS | {"jax": None}))
    assert [finding.level for finding in report.findings] == ["failure", "warning"]
    assert report.failures == report.findings[:1]

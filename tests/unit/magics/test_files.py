"""The output of `%mhjax sync` and `%mhjax pip`."""

from __future__ import annotations

from mhnb.cluster.files import HostSync, PipRun, SyncReport
from mhnb.magics.files import format_pip_output, format_sync_report


def test_hosts_with_equal_sync_share_a_line() -> None:
    """Hosts with the same copies share a line with their files and bytes; modules that stay unchanged have a hint."""
    report = SyncReport(
        "/we/p",
        9,
        (
            HostSync("host0 (a)", "/we/p", ("x.py", "y.py"), 2048, ("x",)),
            HostSync("host1 (b)", "/we/p", ("x.py", "y.py"), 2048, ()),
            HostSync("host2 (c)", "/you/p", (), 0, ()),
        ),
    )
    assert format_sync_report(report) == (
        "mhjax · sync · /we/p, 9 files\n"
        "  host0 (a), host1 (b) /we/p: 2 files copied, 2.0 KiB\n"
        "  host2 (c) /you/p: already up to date\n"
        "  already imported, so still the old version: x\n  Fix: importlib.reload(MODULE) in a %%mhjax cell, or %mhjax restart"
    )


def test_pip_output_is_short_for_success_and_full_for_failure() -> None:
    """For pip the last line of a success and the full output of a failure are shown, once for hosts with equal output."""
    done = "Collecting x\nSuccessfully installed x-1.0\n"
    runs = [
        PipRun("host0 (a)", "/py", 0, done),
        PipRun("host1 (b)", "/py", 0, done),
        PipRun("host2 (c)", "/py", 1, "Looking\nERROR: no network\n"),
    ]
    assert format_pip_output(["install", "x"], runs) == (
        "host0 (a), host1 (b) · /py\n"
        "  Successfully installed x-1.0\n"
        "host2 (c) · /py\n"
        "  Looking\n"
        "  ERROR: no network\n"
        "Ranks keep the version of a package that they have already imported until %mhjax restart."
    )

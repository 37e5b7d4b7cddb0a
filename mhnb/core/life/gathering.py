"""Start barrier: wait for every host, then release all with the addresses that were not known before."""

from __future__ import annotations

from collections.abc import Sequence

from mhnb.core.wire.protocol import HostUp, StartRanks

__all__ = ["StartBarrier"]


class StartBarrier:
    """Waits for the supervisors of several hosts.

    Args:
        hosts: the supervisors that have ranks, in rank order; the first one's machine gets the coordinator.
        hub: the supervisor that runs the hub.
        coordinator: `address:port` that the user has chosen; None: the first host's own choice.
    """

    def __init__(self, hosts: Sequence[int], hub: int, coordinator: str | None = None) -> None:
        self._hosts, self._hub, self._coordinator = tuple(hosts), hub, coordinator
        self._reports: dict[int, HostUp] = {}

    @property
    def missing(self) -> tuple[int, ...]:
        """Supervisors that have not reported."""
        return tuple(k for k in (*self._hosts, self._hub) if k not in self._reports)

    def record_host(self, report: HostUp) -> StartRanks | None:
        """Record a report; after the last one, return the message for all supervisors.

        >>> gathering = StartBarrier([0], hub=1)
        >>> gathering.record_host(HostUp(0, 7, "a", None, "10.0.0.1", [20001, 20002]))
        >>> begin = gathering.record_host(HostUp(1, 8, "here", 9, connection="{}"))
        >>> begin.coordinator_address, begin.board_url, begin.addresses
        ('10.0.0.1:20001', 'tcp:10.0.0.1:20002', {'host0': '10.0.0.1'})
        """
        if not self.missing:
            return None
        self._reports[report.supervisor] = report
        if self.missing:
            return None
        first = self._reports[self._hosts[0]]
        address = f"[{first.address}]" if ":" in first.address else first.address
        return StartRanks(
            coordinator_address=self._coordinator or f"{address}:{first.free_ports[0]}",
            board_url=f"tcp:{first.address}:{first.free_ports[1]}",
            connection=self._reports[self._hub].connection,
            addresses={f"host{k}": self._reports[k].address for k in self._hosts},
        )

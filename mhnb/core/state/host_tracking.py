"""Start barrier and heartbeats of the hosts.

The barrier waits for every host, and after their checks starts all ranks with the addresses that were not known before. Heartbeats
find hosts that lost power or network, because such hosts close no connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mhnb.core.addresses import Address
from mhnb.core.messages import HostUp, StartRanks
from mhnb.core.state.events import RunPreflight
from mhnb.errors import LaunchError

HEARTBEAT_INTERVAL_S = 2.0
"""Interval at which each host is asked for a heartbeat."""
HOST_TIMEOUT_FACTOR = 2
"""Hosts give up their notebook after this many times its limit, so that the notebook detects a loss first and can name it."""
_SUSPENDED_S = 5.0
"""The check runs every tenth of a second. A gap this long means that this process was suspended."""
_RECENT_S = 45.0
"""Long enough to detect a host that was cut off meanwhile."""


class HeartbeatMonitor:
    """Watches supervisors on other machines.

    Args:
        limit_s: a host that is silent for longer is lost.

    >>> monitor = HeartbeatMonitor(20)
    >>> monitor.record(0, now=1.0)
    >>> monitor.find_lost(now=20.0), monitor.find_lost(now=22.0)
    ({}, {0: 21.0})
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._last_seen_at: dict[int, float] = {}
        self._allowed_s: dict[int, float] = {}
        self._requested_at = 0.0

    def record(self, supervisor: int, now: float, *, extra_s: float = 0.0) -> None:
        """Record a supervisor's heartbeat.

        A supervisor that never sent one is left to the start timeout.

        Args:
            supervisor: its number.
            now: seconds on the owner's clock.
            extra_s: additional seconds for which it may be silent until the next heartbeat.
        """
        self._last_seen_at[supervisor], self._allowed_s[supervisor] = now, self._limit_s + extra_s

    def remove(self, supervisor: int) -> None:
        """Stop watching a supervisor that is known to be lost."""
        self._last_seen_at.pop(supervisor, None)

    def extend(self, missed_s: float) -> None:
        """Extend all limits by a time in which no host was asked."""
        self._last_seen_at = {k: at + missed_s for k, at in self._last_seen_at.items()}

    def allow_silence(self, extra_s: float) -> None:
        """Allow each supervisor extra seconds until its next heartbeat."""
        self._allowed_s = dict.fromkeys(self._last_seen_at, self._limit_s + extra_s)

    def limit_wait(self, now: float, limit_s: float) -> None:
        """Limit each host's time until its next heartbeat to `limit_s`.

        The hosts were asked to end ranks, and the wait for a lost one must be short.
        """
        for k, at in self._last_seen_at.items():
            self._allowed_s[k] = min(self._allowed_s[k], now - at + limit_s)

    def is_due(self, now: float) -> bool:
        """Check whether to ask now; if so, the request counts as sent."""
        if not self._last_seen_at or now - self._requested_at < HEARTBEAT_INTERVAL_S:
            return False
        self._requested_at = now
        return True

    def find_lost(self, now: float) -> Mapping[int, float]:
        """Return the lost hosts, with the seconds that each was silent."""
        return {k: now - at for k, at in self._last_seen_at.items() if now - at > self._allowed_s[k]}


class SuspendDetector:
    """Detects that this process itself was suspended, or its machine slept.

    >>> still = SuspendDetector()
    >>> still.check(1.0, 501.0), still.check(2.0, 502.0), still.check(2.5, 552.0), still.check(52.0, 602.0)
    (0.0, 0.0, 0.5, 49.5)
    >>> still.recent_duration(60.0), still.recent_duration(110.0)
    (50.0, 0.0)
    """

    def __init__(self) -> None:
        self._last_check: tuple[float, float] | None = None
        self._duration_s = self._resumed_at = 0.0

    def check(self, now: float, real_now: float) -> float:
        """Return the missed seconds of the owner's clock; 0 if none.

        Args:
            now: seconds on the owner's clock, which may stop while the machine sleeps.
            real_now: seconds on a clock that does not stop.
        """
        before, self._last_check = self._last_check or (now, real_now), (now, real_now)
        if real_now - before[1] < _SUSPENDED_S:
            return 0.0
        self._duration_s, self._resumed_at = real_now - before[1], now
        return now - before[0]

    def recent_duration(self, now: float) -> float:
        """Return the real seconds of a recent suspension; 0 without one.

        It may be why a host is found lost now.
        """
        return self._duration_s if now - self._resumed_at < _RECENT_S else 0.0


# -- start barrier


class StartBarrier:
    """Waits for the supervisors of several hosts.

    Args:
        hosts: the supervisors that have ranks, in rank order; the first one's machine gets the coordinator.
        hub: the supervisor that runs the hub.
        coordinator: `address:port` that the user has chosen; None: the first host's own choice.
    """

    def __init__(self, hosts: Sequence[int], hub: int, coordinator: str | None = None) -> None:
        self._hosts, self._hub, self._given_coordinator = tuple(hosts), hub, coordinator
        self._reports: dict[int, HostUp] = {}
        self._failures: dict[int, LaunchError] = {}
        self.is_open = False
        """Whether the ranks may start, because nothing was found that would prevent it."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Supervisors that have neither reported nor failed."""
        return tuple(k for k in (*self._hosts, self._hub) if k not in self._reports and k not in self._failures)

    def record(self, supervisor: int, report: HostUp | LaunchError) -> RunPreflight | None:
        """Record a supervisor's report or failure; after the last, return the preflight.

        >>> barrier = StartBarrier([0], hub=1)
        >>> barrier.record(0, HostUp(0, 7, "a", None, "10.0.0.1", [20001, 20002]))
        >>> barrier.record(1, HostUp(1, 8, "here", 9, connection="{}")).coordinator
        '10.0.0.1:20001'
        """
        if not self.missing:
            return None
        if isinstance(report, HostUp):
            self._reports[supervisor] = report
        else:
            self._failures[supervisor] = report
        if self.missing:
            return None
        return RunPreflight(
            self._hosts, self._reports, self._failures, self._coordinator() if self._hosts[0] in self._reports else "",
            self._reports[self._hub].connection if self._hub in self._reports else "",
        )  # fmt: skip

    def _coordinator(self) -> str:
        first = self._reports[self._hosts[0]]
        return self._given_coordinator or str(Address(first.address, first.free_ports[0]))

    def open(self) -> StartRanks:
        """Return the message with which the ranks of all hosts start.

        >>> barrier = StartBarrier([0], hub=1)
        >>> barrier.record(1, HostUp(1, 8, "here", 9, connection="{}"))
        >>> _ = barrier.record(0, HostUp(0, 7, "a", None, "10.0.0.1", [20001, 20002]))
        >>> begin = barrier.open()
        >>> begin.coordinator_address, begin.board_url, begin.addresses
        ('10.0.0.1:20001', 'tcp:10.0.0.1:20002', {'host0': '10.0.0.1'})
        """
        self.is_open = True
        first = self._reports[self._hosts[0]]
        return StartRanks(
            coordinator_address=self._coordinator(),
            board_url=str(Address(first.address, first.free_ports[1], "tcp")),
            connection=self._reports[self._hub].connection,
            addresses={f"host{k}": self._reports[k].address for k in self._hosts},
        )

"""A supervisor that is released while another thread checks whether it has ended."""

from __future__ import annotations

from typing import Any

import pytest

from mhnb.launchers.local import LocalHost
from mhnb.launchers.remote_command import CommandHosts
from mhnb.launchers.ssh import SshHost


class _ReleasedDuringPoll:
    """A running process that the other thread releases during the check."""

    def __init__(self, host: Any) -> None:
        self.host = host

    def has_exited(self) -> bool:
        self.host.release()
        return True

    def detach(self) -> None:
        """Do nothing, because the process is a fake."""

    def kill(self) -> None:
        """Do nothing, because releasing an ssh host kills its ssh process."""


@pytest.mark.parametrize("kind", [LocalHost, CommandHosts, SshHost])
def test_host_released_during_a_poll_has_not_ended(kind: type[Any]) -> None:
    """A released host has not ended; otherwise it would count as lost, and the ranks of its detached cluster would be killed."""
    host: Any = object.__new__(kind)
    host._released, host._process = False, None
    host._process = _ReleasedDuringPoll(host)
    assert not host.has_exited()
    assert host._released

"""Run preflight inside the allocation and with the command of the supervisors, before they start.

Each task first runs a probe instead of its supervisor. If preflight succeeds, the probes end and the supervisors start. Otherwise
everything ends before any process has imported JAX.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mhnb.core.preflight.report import PreflightReport
from mhnb.core.reach.ssh import SshOptions
from mhnb.errors import LaunchError
from mhnb.launch.calls import Calls
from mhnb.launch.carried import CarriedHosts, Carrier
from mhnb.launch.chorus import Chorus, ChorusEnded

__all__ = ["Look", "Rehearsal", "RehearsedHosts"]

Look: TypeAlias = Callable[[Chorus], PreflightReport]
"""Runs preflight; raises LaunchError if a start could not work."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The preflight before the supervisors start."""

    look: Look | None
    """None: no preflight."""
    begin: bytes | None
    """Input that starts the supervisors afterwards; None if only preflight was requested."""
    far: SshOptions
    """Options of the remote side."""
    calls: Calls | None = None
    """Server to which the probes connect, if the command cannot pass them requests."""


class RehearsedHosts(CarriedHosts):
    """The supervisors of one command, after a preflight of their machines.

    Args:
        carrier: the command, with the input that turns each task into a probe.
        supervisors: their numbers.
        rehearsal: the preflight.
    """

    def __init__(self, carrier: Carrier, supervisors: Sequence[int], rehearsal: Rehearsal) -> None:
        super().__init__(carrier, supervisors)
        self.refusal: LaunchError | None = None
        self.report: PreflightReport | None = None
        """Result of preflight, if no finding prevents a start."""
        self.looked = threading.Event()
        self._rehearsal = rehearsal
        self._chorus = Chorus(
            len(supervisors),
            carrier.log,
            send=self.give,
            has_ended=self.is_over,
            far=rehearsal.far,
            calls=rehearsal.calls,
        )
        self._looking = threading.Thread(target=self._rehearse, name="mhnb-rehearsal", daemon=True)
        self._looking.start()

    @property
    def looked_in_s(self) -> float | None:
        """Return the duration of preflight."""
        return None if self.report is None else self.report.cost_s

    def has_exited(self) -> bool:
        """Return whether the command has ended, or preflight failed."""
        return self.refusal is not None or super().has_exited()

    def explain(self) -> str:
        """Describe the findings of preflight, or why the command ended."""
        return super().explain() if self.refusal is None else str(self.refusal)

    def wait(self, pids: tuple[int, ...]) -> None:
        """Close the watchdog's input, which ends everything, and wait for the end."""
        self._chorus.stop()
        super().wait(pids)
        self._looking.join()

    def _rehearse(self) -> None:
        try:
            self._chorus.await_begin()
            if self._rehearsal.look is not None:
                self.report = self._rehearsal.look(self._chorus)
            if self._rehearsal.begin is not None:
                self._chorus.release()
                self.give(self._rehearsal.begin)
        except ChorusEnded:
            # The command's output contains the reason, and `explain` reads it.
            return
        except LaunchError as error:
            self.refusal = error
        except Exception as error:  # noqa: BLE001  # an exception in this thread would not be reported otherwise
            self.refusal = LaunchError(f"the look at the machines failed: {type(error).__name__}: {error}")
        finally:
            self._chorus.close()
            if self._rehearsal.calls is not None:
                self._rehearsal.calls.close()
            self.looked.set()

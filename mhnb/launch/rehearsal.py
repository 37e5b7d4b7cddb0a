"""Supervisors whose machines are looked at first, in the very allocation that they will have and by the same command.

In the place of each stands a probe. When the look is well the probes make room and the supervisors begin; else everything ends,
before any process has imported JAX.
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
"""Looks at the machines; raises LaunchError where a start could not work."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What comes before the supervisors."""

    look: Look | None
    """None: nothing is looked at."""
    begin: bytes | None
    """What the supervisors are given then; None: there come none, and all that was wanted is the look."""
    far: SshOptions
    """What there is on the machines."""
    calls: Calls | None = None
    """Where the probes call, where the command hands them no questions."""


class RehearsedHosts(CarriedHosts):
    """The supervisors of one command, after a look at their machines.

    Args:
        carrier: the command, given what makes each task a probe.
        supervisors: their numbers.
        rehearsal: what comes first.
    """

    def __init__(self, carrier: Carrier, supervisors: Sequence[int], rehearsal: Rehearsal) -> None:
        super().__init__(carrier, supervisors)
        self.refusal: LaunchError | None = None
        self.report: PreflightReport | None = None
        """What the look has found, where nothing stands against a start."""
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
        """How long the look took."""
        return None if self.report is None else self.report.cost_s

    def has_exited(self) -> bool:
        """Whether the command has ended, or the look was not well."""
        return self.refusal is not None or super().has_exited()

    def explain(self) -> str:
        """Say what the look has found, or why the command ended."""
        return super().explain() if self.refusal is None else str(self.refusal)

    def wait(self, pids: tuple[int, ...]) -> None:
        """Let go of the lifeline, at which everything ends, and wait for that."""
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
            # What the command wrote says why, and `explain` reads it.
            return
        except LaunchError as error:
            self.refusal = error
        except Exception as error:  # noqa: BLE001  # in a thread nobody else would tell
            self.refusal = LaunchError(f"the look at the machines failed: {type(error).__name__}: {error}")
        finally:
            self._chorus.close()
            if self._rehearsal.calls is not None:
                self._rehearsal.calls.close()
            self.looked.set()

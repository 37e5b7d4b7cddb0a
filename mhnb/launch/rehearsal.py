"""Run preflight inside the allocation and with the command of the supervisors, before they start.

Each task first runs a probe instead of its supervisor. If preflight succeeds, the probes end and the supervisors start. Otherwise
everything ends before any process has imported JAX.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mhnb.core.preflight.facts import PreflightReport
from mhnb.core.reach.ssh import SshOptions
from mhnb.errors import LaunchError
from mhnb.launch.calls import ProbeServer
from mhnb.launch.carried import CommandHosts, CommandSpec
from mhnb.launch.chorus import MultiplexedProbes, ProbesExited

__all__ = ["CheckedHosts", "PreflightCheck", "PreflightStage"]

PreflightCheck: TypeAlias = Callable[[MultiplexedProbes], PreflightReport]
"""Runs preflight; raises LaunchError if a start could not work."""


@dataclass(frozen=True, slots=True)
class PreflightStage:
    """The preflight before the supervisors start."""

    check: PreflightCheck | None
    """None: no preflight."""
    start_input: bytes | None
    """Input that starts the supervisors afterwards; None if only preflight was requested."""
    remote_options: SshOptions
    """Options of the remote side."""
    probe_server: ProbeServer | None = None
    """Server to which the probes connect, if the command cannot pass them requests."""


class CheckedHosts(CommandHosts):
    """The supervisors of one command, after a preflight of their machines.

    Args:
        command_spec: the command, with the input that turns each task into a probe.
        supervisors: their numbers.
        preflight: the preflight.
    """

    def __init__(self, command_spec: CommandSpec, supervisors: Sequence[int], preflight: PreflightStage) -> None:
        super().__init__(command_spec, supervisors)
        self.preflight_error: LaunchError | None = None
        self.report: PreflightReport | None = None
        """Result of preflight, if no finding prevents a start."""
        self.preflight_done = threading.Event()
        self._preflight = preflight
        self._probes = MultiplexedProbes(
            len(supervisors),
            command_spec.log,
            send=self.write_stdin,
            has_ended=self.has_command_ended,
            remote_options=preflight.remote_options,
            server=preflight.probe_server,
        )
        self._preflight_thread = threading.Thread(target=self._run_preflight, name="mhnb-rehearsal", daemon=True)
        self._preflight_thread.start()

    @property
    def preflight_s(self) -> float | None:
        """Return the duration of preflight."""
        return None if self.report is None else self.report.duration_s

    def has_exited(self) -> bool:
        """Return whether the command has ended, or preflight failed."""
        return self.preflight_error is not None or super().has_exited()

    def explain(self) -> str:
        """Describe the findings of preflight, or why the command ended."""
        return super().explain() if self.preflight_error is None else str(self.preflight_error)

    def wait(self, pids: tuple[int, ...]) -> None:
        """Close the watchdog's input, which ends everything, and wait for the end."""
        self._probes.stop()
        super().wait(pids)
        self._preflight_thread.join()

    def _run_preflight(self) -> None:
        try:
            self._probes.await_begin()
            if self._preflight.check is not None:
                self.report = self._preflight.check(self._probes)
            if self._preflight.start_input is not None:
                self._probes.end_probes()
                self.write_stdin(self._preflight.start_input)
        except ProbesExited:
            # The command's output contains the reason, and `explain` reads it.
            return
        except LaunchError as error:
            self.preflight_error = error
        except Exception as error:  # noqa: BLE001  # an exception in this thread would not be reported otherwise
            self.preflight_error = LaunchError(f"the look at the machines failed: {type(error).__name__}: {error}")
        finally:
            self._probes.close()
            if self._preflight.probe_server is not None:
                self._preflight.probe_server.close()
            self.preflight_done.set()

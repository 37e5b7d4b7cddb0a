"""Format the error of a cell that the cluster refuses because of its state, with the ways out of each state."""

from __future__ import annotations

from mhnb.errors import MhnbError, NotClean, NotStarted
from mhnb.values import ClusterState

__all__ = ["refusal_error"]

_RECOVERY_TEXTS = {
    "split": "%mhjax accept takes it as it is, {replay} gives fresh processes and runs the cells again",
    "tainted": "{replay} gives fresh processes and runs the cells again; %mhjax accept goes on, and later values could be wrong",
    "dead": "{replay} gives fresh processes and runs the cells again",
    "stopped": "%mhjax start starts a cluster",
}


def refusal_error(state: ClusterState, reason: str, replay_command: str) -> MhnbError:
    """Build the error of a cell that was submitted to a cluster which runs no cells in its state.

    Args:
        replay_command: the command that starts fresh processes, and its cost.

    >>> refusal_error("stopped", "", "")
    NotStarted('the cluster is stopped; %mhjax start starts a cluster')
    """
    recovery = _RECOVERY_TEXTS.get(state, "").format(replay=replay_command)
    if state == "stopped":
        return NotStarted(f"the cluster is stopped{': ' + reason if reason else ''}; {recovery}", state=state)
    if state == "dead":
        # The reason ends with the same way out.
        reason = reason.removesuffix(replay_command).rstrip()
    return NotClean(f"the cluster is {state}: {reason}\n  nothing was sent · {recovery}", state=state)

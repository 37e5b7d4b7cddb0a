"""Format the error of a cell that the cluster refuses because of its state, with the ways out of each state."""

from __future__ import annotations

from mhnb.errors import MhnbError, NotClean, NotStarted
from mhnb.values import ClusterState

__all__ = ["make_refusal"]

_WAYS_OUT = {
    "split": "%mhjax accept takes it as it is, {replay} gives fresh processes and runs the cells again",
    "tainted": "{replay} gives fresh processes and runs the cells again; %mhjax accept goes on, and later values could be wrong",
    "dead": "{replay} gives fresh processes and runs the cells again",
    "stopped": "%mhjax start starts a cluster",
}


def make_refusal(state: ClusterState, reason: str, replay: str) -> MhnbError:
    """Build the error of a cell that was submitted to a cluster which runs no cells in its state.

    Args:
        replay: the command that starts fresh processes, and its cost.

    >>> make_refusal("stopped", "", "")
    NotStarted('the cluster is stopped; %mhjax start starts a cluster')
    """
    way_out = _WAYS_OUT.get(state, "").format(replay=replay)
    if state == "stopped":
        return NotStarted(f"the cluster is stopped{': ' + reason if reason else ''}; {way_out}", state=state)
    if state == "dead":
        # The reason ends with the same way out.
        reason = reason.removesuffix(replay).rstrip()
    return NotClean(f"the cluster is {state}: {reason}\n  nothing was sent · {way_out}", state=state)

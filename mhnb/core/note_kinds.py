"""Kinds of notes and states for users, each with one sentence.

Errors are in `mhnb/errors.py`.
Each name is also the anchor of a section in docs/reference/messages.md, which `%mhjax help NAME` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NOTE_KINDS: Mapping[str, str] = MappingProxyType(
    {
        # states
        "in-sync": "The ranks launched the same programs in the same order.",
        "split": "The ranks ended a cell differently, and there is no record to tell whether they are still in sync.",
        "tainted": "Later results may be wrong: the ranks launched different programs, or a collective was interrupted.",
        "dead": "A rank, a host or ipyparallel's controller is lost.",
        "stopped": "The cluster was stopped, or its start failed.",
        # a cell
        "ranks-differ-after-raise": "Some ranks raised and others finished, so variables of the cell may differ.",
        "caught-mismatch": "The cell's code caught an OrderMismatch, and its program did not run.",
        "host-data-differs": "The ranks put different values into copies of one array, or into one launch.",
        "provenance-differs": "The ranks run one program on arrays that were computed differently.",
        "not-compared": "Some arrays or values could not be compared, so the verdict on the cell is weaker.",
        "late-output": "A thread or task of a cell printed after the cell had ended.",
        "output-shortened": "The notebook stores only the beginning and the end of long output.",
        "waiting-cell": "A cell waits for its turn behind another cell, a start, a restart or a replay.",
        "hang-card": "Ranks wait in a launch that other ranks have not reached.",
        "straggler": "One rank came to launches so late that the others waited for it.",
        "out-of-memory": "An allocation failed, and the report shows what the memory held.",
        "metric-differs": "Ranks logged different values of a metric on which they should agree.",
        "metric-missing": "Values that a cell logged could not be read.",
        "late-variable": "An environment variable was changed after JAX had read it, so JAX does not use the change.",
        # an interrupt
        "interrupt-steps": "An interrupt escalates from an agreed stop over signals to a kill.",
        "abandoned-collective": "A rank was interrupted inside a collective, which may still be waiting.",
        "disconnected": "The connections between the ranks were closed to end a collective.",
        # restart, replay and attach
        "state-lost": "The ranks are new processes without the variables from before.",
        "replay-left-out": "A replay left out cells or pushes that cannot be repeated.",
        "replay-cured": "A cell that had raised has finished in a replay.",
        "push-too-large": "A pushed value is too large for the journal, so a replay leaves it out.",
        "journal-failed": "The journal could not be written, so a replay stops before that cell.",
        "unseen-cell": "A cell ended while no notebook was attached, so its output is in the logs only.",
        "standby-lost": "The standby ranks were lost, and the next restart starts new processes.",
        # a start and its hosts
        "guard-unavailable": "The installed JAX lacks a function that the guard needs, so launches are not compared.",
        "forced-devices": "XLA_FLAGS asks for another number of CPU devices than the ranks have.",
        "preflight-findings": "A check of the hosts found something that prevents or endangers the start.",
        "lost-host": "The connection to a host ended, or the host has not answered in time.",
        "suspended": "The notebook's process was suspended, or its machine slept.",
    }
)
"""By anchor, what the note or state says."""

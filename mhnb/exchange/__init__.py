"""Transfer values between the notebook and the ranks, and request metadata about them, over any `RankClient`.

It never imports JAX; it imports NumPy when the first array is transferred.
"""

from mhnb.cluster.requests import Completion, RankClient, check_values, complete, inspect, list_names, list_variables
from mhnb.cluster.transfer import PushPayload, pull, push, push_payload

__all__ = [
    "Completion",
    "PushPayload",
    "RankClient",
    "check_values",
    "complete",
    "inspect",
    "list_names",
    "list_variables",
    "pull",
    "push",
    "push_payload",
]

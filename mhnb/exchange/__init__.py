"""Transfer values between the notebook and the ranks, and request metadata about them, over any `Asker`.

It never imports JAX; it imports NumPy when the first array is transferred.
"""

from mhnb.exchange.asks import Asker
from mhnb.exchange.pull import pull
from mhnb.exchange.push import Packed, push, push_packed
from mhnb.exchange.questions import Completion, check_values, complete, inspect, list_variables, names

__all__ = [
    "Asker",
    "Completion",
    "Packed",
    "check_values",
    "complete",
    "inspect",
    "list_variables",
    "names",
    "pull",
    "push",
    "push_packed",
]

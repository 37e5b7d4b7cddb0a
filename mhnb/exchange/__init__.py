"""Values between the notebook and the ranks, and questions about them, over anything that can ask a rank.

It never imports JAX; NumPy when the first array moves.
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

"""One bare rank: a Python process with jax.distributed and nothing else, the lower bound of every row.

Run as `python -m tests.bench.bare`: each line of stdin is a cell as JSON, and a marked line answers each cell that has run.
"""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Execute each line of stdin in one namespace until stdin ends."""
    namespace: dict[str, Any] = {}
    for line in sys.stdin:
        exec(json.loads(line), namespace)
        # File descriptor 1 also carries output that gloo prints from C, so the answer is marked.
        print("\ndone", flush=True)


if __name__ == "__main__":
    main()

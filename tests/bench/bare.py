"""One bare rank: a Python process with jax.distributed and nothing else, the floor of every row.

Run as `python -m tests.bench.bare`: each line of stdin is a cell as JSON, answered by a marked line when it has run.
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
        # fd 1 also carries what gloo prints from C, so the answer is marked.
        print("\ndone", flush=True)


if __name__ == "__main__":
    main()

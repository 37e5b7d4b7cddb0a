"""A compiled program's text without where it came from: what is left is what it computes."""

from __future__ import annotations

import re

__all__ = ["bare_text"]

_ORIGIN = re.compile(r', metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_TABLES = re.compile(r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d.*\n)*", re.MULTILINE)
"""What the numbers in `metadata` stand for, since jaxlib 0.9 at the head of the text."""
_TUNING = re.compile(r"^((?!.* custom-call(?:-start)?\().*?), backend_config=.*", re.MULTILINE)
"""What a backend notes of how it will run an operation, for its own machine. Of a custom call it is what that computes."""
_CHOSEN = re.compile(r'"(?:autotune_workspace_size|selected_algorithm)":"[^"]*",?')
"""But for what it found to be fastest."""


def bare_text(hlo: str) -> str:
    """Leave out files, functions, lines, and a backend's own notes.

    >>> bare_text('  %a = f32[] add(%b, %c), metadata={op_name="jit(f)/add" stack_frame_id=3}')
    '  %a = f32[] add(%b, %c)'
    """
    return _CHOSEN.sub("", _TUNING.sub(r"\1", _ORIGIN.sub("", _TABLES.sub("", hlo))))

"""Strip metadata from a compiled program's text, so that only the computation remains."""

from __future__ import annotations

import re

__all__ = ["strip_metadata"]

_METADATA = re.compile(r', metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_TABLES = re.compile(r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d.*\n)*", re.MULTILINE)
"""Tables that the numbers in `metadata` refer to; since jaxlib 0.9 at the head of the text."""
_BACKEND_CONFIG = re.compile(r"^((?!.* custom-call(?:-start)?\().*?), backend_config=.*", re.MULTILINE)
"""A backend's settings for running an operation on its own machine. For a custom call they define what it computes."""
_AUTOTUNING = re.compile(r'"(?:autotune_workspace_size|selected_algorithm)":"[^"]*",?')
"""Except for the results of autotuning."""


def strip_metadata(hlo: str) -> str:
    """Remove files, functions, lines, and a backend's own settings.

    >>> strip_metadata('  %a = f32[] add(%b, %c), metadata={op_name="jit(f)/add" stack_frame_id=3}')
    '  %a = f32[] add(%b, %c)'
    """
    return _AUTOTUNING.sub("", _BACKEND_CONFIG.sub(r"\1", _METADATA.sub("", _TABLES.sub("", hlo))))

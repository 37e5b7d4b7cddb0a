"""Pick the line of a dead process's last output that explains its death. Where the lines come from is handled elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["drop_flag_help", "drop_stack_frames", "pick_error_line", "shorten_line"]

_QUOTED_CHARS = 120
"""Number of characters quoted from the start of a line, and from its end."""

_FRAMES = re.compile(
    r"\s*(?:PC: )?@ +0x[0-9a-f]+\b.*"
    r"|\*\*\* (?:Check failure stack trace|SIG\w+ |Aborted at|Begin stack|End stack).*\*\*\*"
)
"""Frames of absl and glog with the lines around them: `*** Check failure stack trace: ***`, `*** SIGABRT received at time=1 ***`."""
_BEGIN, _END = "*** Begin stack trace ***", "*** End stack trace ***"
_FATAL = re.compile(r"F\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ([\w./-]+:\d+\]) (.*)")
_LOG_LINE = re.compile(r"[DEFIW]\d{4} \d\d:\d\d:\d\d\.\d+ |Fatal Python error|Traceback \(|terminate called|\*\*\* ")
"""Matches the first line after XLA's flag help; the help has lines of every other kind."""
_STATUS = re.compile(r".*absl::Status: (?=\S)")


def drop_stack_frames(lines: Sequence[str]) -> list[str]:
    """Remove the frames of C++ stacks, because they come last and hide the explanation above them.

    >>> drop_stack_frames(["why", "*** Check failure stack trace: ***", "    @     0x7ff985358ba3  PyObject_Vectorcall"])
    ['why']
    """
    kept: list[str] = []
    inside = False
    for line in lines:
        # Between these two markers TSL writes only names, which look like any other words.
        inside = (inside or line.strip() == _BEGIN) and line.strip() != _END
        if not inside and not _FRAMES.fullmatch(line):
            kept.append(line)
    return kept


def drop_flag_help(lines: Sequence[str]) -> list[str]:
    """Remove the help text of all flags that XLA prints below a flag that it could not parse.

    >>> drop_flag_help(["E1 why", "usage: --xla_a=b", "Flags:", "    --xla_a=true  bool  What it does."])
    ['E1 why', 'usage: --xla_a=b']
    """
    kept: list[str] = []
    inside = False
    for before, line in zip(["", *lines], lines, strict=False):
        begins = line.strip() == "Flags:" and before.startswith("usage: --")
        inside = (inside or begins) and not _LOG_LINE.match(line)
        if not inside:
            kept.append(line)
    return kept


def pick_error_line(lines: Sequence[str]) -> str:
    """Return the line to quote: the fatal message of a C++ library, which ends the process, else the last line, else "".

    >>> pick_error_line(["F1122 23:44:07.924468   97 client.h:80] It ends. absl::Status: NOT_FOUND: no task", "RPC: /xla"])
    'client.h:80] … NOT_FOUND: no task'
    """
    for line in reversed(lines):
        if found := _FATAL.fullmatch(line):
            # JAX's text before the status is the same for every cause.
            return shorten_line(f"{found[1]} {_STATUS.sub('… ', found[2])}")
    return shorten_line(lines[-1]) if lines else ""


def shorten_line(line: str) -> str:
    """Remove the middle of a line that is too long to quote: a cell may print 100,000 words without a newline.

    >>> shorten_line("short"), len(shorten_line("long " * 9999))
    ('short', 241)
    """
    return line if len(line) <= 2 * _QUOTED_CHARS else f"{line[:_QUOTED_CHARS]}…{line[-_QUOTED_CHARS:]}"

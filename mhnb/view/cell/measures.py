"""Which of the numbers in a text are measures that can be drawn, and which only name or count something.

A loss, a time or a share of memory is a measure. A process id, a port or the number of a device is a label: drawn as steps it would
look like a measurement. A step number is a counter: it is the axis that measures are drawn over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

_LABELS = (
    "pid ppid tid uid gid id ids port device dev process proc rank host hostname node worker task job gpu cpu tpu core slot thread "
    "socket fd seed hash sha key shard replica line version address index idx"
)
_STEPS = "step steps epoch iter iteration it batch update episode round"
_LABEL_WORDS, _STEP_WORDS = frozenset(_LABELS.split()), frozenset(_STEPS.split())
_WORD_PARTS = re.compile(r"[_./-]")
_WORDS = re.compile(r"([^\W\d][\w/.-]*(?: [^\W\d][\w/.-]*)?)[^\w]*$")
"""Matches the last word before a number, and the one before it: `val loss`."""
_UNIT_WORD = re.compile(r" ?([^\W\d_][\w/%]*|%)")
_INTEGER = re.compile(r"[-+]?\d+")
_GLUED = re.compile(r"(?:[\w.]|[^\W\d]-|^[:.-])$")
"""Matches the end of a text after which digits are part of a name or an address: `gpu0`, `node-12`, the `:8476` after a number."""
_NAME_REST = re.compile(r"[^\W\d_]+\d|:\d")
"""Matches text after digits that are part of a name or an address: `3f9a2`."""
_LARGE_DIGITS = 5
_COUNTED_SHARE = 0.9


def name_field(before: str, after: str) -> str:
    """Return the words that name a number, from the text around it; may be empty.

    >>> name_field("step 3 val loss=", ""), name_field(" | ", " tok/s")
    ('val loss', 'tok/s')
    """
    if found := _WORDS.search(before):
        return found[1].rstrip(".-/")
    unit = _UNIT_WORD.match(after)
    return unit[1] if unit else ""


def is_label(before: str, values: Sequence[str], after: str) -> bool:
    """Return whether integers name something instead of measuring it.

    They do, unless a `%` follows,

    - if the text before them is a word for a name, such as pid, id, port, device, process, host or rank,
    - if they are part of a word or an address, as in `gpu0`, `node-12`, `3f9a2` or `10.0.0.3:8476`,
    - if they have five digits or more, no two are equal, and no unit follows: ids rather than measures.

    A number with a decimal point, an exponent or a unit in it is always a measure.

    >>> is_label("pid ", ("4711", "4712"), ""), is_label("loss ", ("3", "4"), ""), is_label("at ", ("81920", "81935"), " bytes")
    (True, False, False)
    """
    texts = [value.strip() for value in values if value.strip()]
    if not texts or after.startswith("%") or not all(map(_INTEGER.fullmatch, texts)):
        return False
    is_glued = not any(value.startswith(" ") for value in values)
    if (is_glued and _GLUED.search(before)) or _NAME_REST.match(after):
        return True
    if _is_named(before, _LABEL_WORDS):
        return True
    has_unit = after.startswith(" ") and _UNIT_WORD.match(after) is not None
    is_large = min(map(len, texts)) >= _LARGE_DIGITS
    return is_large and len(set(texts)) == len(texts) and not has_unit


def is_counter(texts: Sequence[str], indexes: Sequence[int] = ()) -> bool:
    """Return whether the integers of successive lines count: nearly all of them are one constant step apart.

    Args:
        texts: the integer of each line, as it was printed.
        indexes: which lines these are; successive ones if it is empty.

    >>> is_counter(["0", "10", "20", "30"]), is_counter(["5", "3", "9", "7"]), is_counter(["0", "40", "50"], [0, 4, 5])
    (True, False, True)
    """
    if not all(_INTEGER.fullmatch(text.strip()) for text in texts):
        return False
    places = zip(map(int, texts), indexes or range(len(texts)), strict=False)
    steps = Counter((after - before) / (there - here) for (before, here), (after, there) in pairwise(places))
    return bool(steps) and steps.most_common(1)[0][1] >= _COUNTED_SHARE * steps.total()


def is_step(before: str, texts: Sequence[str], indexes: Sequence[int] = ()) -> bool:
    """Return whether a counter has a name that a training loop gives to its steps.

    >>> is_step("epoch ", ["0", "1", "2"]), is_step("layer ", ["0", "1", "2"])
    (True, False)
    """
    return _is_named(before, _STEP_WORDS) and is_counter(texts, indexes)


def _is_named(before: str, names: frozenset[str]) -> bool:
    """Return whether the last word before a number is one of `names`."""
    words = name_field(before, "").lower().split()
    return bool(words) and _WORD_PARTS.split(words[-1])[-1] in names

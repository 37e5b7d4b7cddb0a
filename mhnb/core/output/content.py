"""Normalise an output for comparison: without cell numbers, memory addresses and random ids."""

from __future__ import annotations

import json
import re

from mhnb.values import Output

__all__ = ["normalize_output"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")
_IGNORED_KEYS = ("execution_count", "transient")
_MARKUP = re.compile(r"<(style|script)\b.*?</\1>|<[a-zA-Z][^<>]*>", re.DOTALL)
"""Markup, which readers do not see."""
_ID = re.compile(r"""\sid=["']?([\w-]+)""")
_ID_REFERENCE = re.compile(r"""(?<=\s)((?:id|for|headers|href|aria-\w+)=["']?#?)([\w-]+)""")
"""Matches where a tag names an element: itself or another one."""
_WORD = re.compile(r"[\w-]+")
_PANDAS_ID = re.compile(r"T_[0-9a-f]{5}")
"""Ids by pandas, which styles a table with rules for its id."""
_HEX = re.compile(r"[0-9a-f]{8,}")


def normalize_output(output: Output) -> str:
    """Return an output's content as text; outputs with equal content give the same text.

    >>> normalize_output({"output_type": "stream", "name": "stdout", "text": "<f at 0x7f0123456789>"})
    '{"name": "stdout", "output_type": "stream", "text": "<f at 0x>"}'
    """
    content = {key: value for key, value in output.items() if key not in _IGNORED_KEYS}
    data = content.get("data")
    if isinstance(data, dict) and isinstance(html := data.get("text/html"), str):
        content["data"] = {**data, "text/html": _replace_random_ids(html)}
    return _ADDRESS.sub(" at 0x", json.dumps(content, sort_keys=True, default=str))


def _replace_random_ids(html: str) -> str:
    """Replace random ids by numbers, because they differ by rank without meaning, for example in a styled DataFrame.

    They are replaced only where they are names of elements: the same word in visible text stays.
    """
    found = (word for tag in _MARKUP.finditer(html) for word in _ID.findall(tag[0]))
    # No text contains this character, so a number in the text is not mistaken for one of these.
    numbers = {word: f"\0{at}" for at, word in enumerate(dict.fromkeys(filter(_is_random, found)))}
    if not numbers:
        return html

    def rename(markup: re.Match[str]) -> str:
        if markup[1]:
            return _WORD.sub(lambda word: numbers.get(word[0], word[0]), markup[0])
        return _ID_REFERENCE.sub(lambda name: name[1] + numbers.get(name[2], name[2]), markup[0])

    return _MARKUP.sub(rename, html)


def _is_random(word: str) -> bool:
    run = _HEX.search(word)
    return _PANDAS_ID.match(word) is not None or (run is not None and not run[0].isalpha() and not word.isdecimal())

"""What an output says, apart from what says nothing: numbers of cells, memory addresses, ids made at random."""

from __future__ import annotations

import json
import re

from mhnb.values import Output

__all__ = ["find_content"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")
_RANDOM_ID = re.compile(r"""\bid=["']?([\w.:-]*(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{5,}[\w.:-]*)""")
_SILENT = ("execution_count", "transient")


def find_content(output: Output) -> str:
    """Write what an output says; outputs that say the same give the same text.

    >>> find_content({"output_type": "stream", "name": "stdout", "text": "<f at 0x7f0123456789>"})
    '{"name": "stdout", "output_type": "stream", "text": "<f at 0x>"}'
    """
    told = {key: value for key, value in output.items() if key not in _SILENT}
    html = told.get("data", {}).get("text/html")
    if isinstance(html, str):
        told["data"] = {**told["data"], "text/html": _number_ids(html)}
    return _ADDRESS.sub(" at 0x", json.dumps(told, sort_keys=True, default=str))


def _number_ids(html: str) -> str:
    """Put numbers in the place of ids made at random, as a styled DataFrame has: they differ by rank and say nothing.

    Where such a word is no name, but text that people read, it stays.

    >>> _number_ids('<style>#T_1f9c2 {}</style><i id="T_1f9c2">T_1f9c2</i>')
    '<style>#0 {}</style><i id="0">T_1f9c2</i>'
    """
    ids = {name: str(at) for at, name in enumerate(dict.fromkeys(_RANDOM_ID.findall(html)))}
    if not ids:
        return html
    names = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
    return re.sub(rf"(?<=[#\"'=])(?:{names})(?![\w-])", lambda found: ids[found[0]], html)

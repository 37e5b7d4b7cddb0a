"""PRNG keys, for which NumPy has no type: where in a value they are, so that what to do about them can be typed as it is said.

The rank that refuses a value knows an array, not its name. Where the key lies is asked once more, of those ranks alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mhnb.core.exchange.transfer import KEY_DATA, KEY_REFUSED, Refusal, ValueRow
from mhnb.exchange.asks import Asker, ask_all
from mhnb.sharding.wire import decode_tree

__all__ = ["name_keys"]

_KEY = "key<"
"""Begins the name of such a type: `key<fry>`."""


def name_keys(asker: Asker, name: str, answers: Mapping[int, ValueRow | Refusal]) -> dict[int, ValueRow | Refusal]:
    """Put the key's own name into the refusals for it, as `keys` or `state['k']`. Nothing is asked where none is refused."""
    refused = {rank: row for rank, row in answers.items() if isinstance(row, Refusal) and row.code == KEY_REFUSED}
    if not refused:
        return dict(answers)
    layouts = ask_all(asker, refused, "layout", {"expression": name})
    named = {rank: _name_key(name, refusal, layouts[rank].value) for rank, refusal in refused.items()}
    return {**answers, **named}


def _name_key(name: str, refusal: Refusal, layout: Mapping[str, Any]) -> Refusal:
    rows = decode_tree(layout["tree"]).rows if "tree" in layout else ()
    paths = [row.path for row in rows if row.layout is not None and row.layout.dtype.name.startswith(_KEY)]
    # In an object that is no pytree it has no path, and JAX writes `<flat index 0>` where a node has no keys.
    if not paths or "<" in paths[0]:
        return refusal
    return replace(refusal, text=refusal.text.replace(KEY_DATA, f"jax.random.key_data({name}{paths[0]})"))

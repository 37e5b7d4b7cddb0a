"""Locate PRNG keys, for which NumPy has no type, inside a value, so that the fix in the message can be typed as it is written.

The rank that refuses a value knows an array, but not its name. One more request, to those ranks only, returns the path of the key.
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
"""Prefix of the name of a key type: `key<fry>`."""


def name_keys(asker: Asker, name: str, answers: Mapping[int, ValueRow | Refusal]) -> dict[int, ValueRow | Refusal]:
    """Put the key's own expression into the refusals for it, as `keys` or `state['k']`. Sends no request if there is no such refusal."""
    refused = {rank: row for rank, row in answers.items() if isinstance(row, Refusal) and row.code == KEY_REFUSED}
    if not refused:
        return dict(answers)
    layouts = ask_all(asker, refused, "layout", {"expression": name})
    named = {rank: _name_key(name, refusal, layouts[rank].value) for rank, refusal in refused.items()}
    return {**answers, **named}


def _name_key(name: str, refusal: Refusal, layout: Mapping[str, Any]) -> Refusal:
    rows = decode_tree(layout["tree"]).rows if "tree" in layout else ()
    paths = [row.path for row in rows if row.layout is not None and row.layout.dtype.name.startswith(_KEY)]
    # In an object that is not a pytree a key has no path, and JAX writes `<flat index 0>` for a node without keys.
    if not paths or "<" in paths[0]:
        return refusal
    return replace(refusal, text=refusal.text.replace(KEY_DATA, f"jax.random.key_data({name}{paths[0]})"))

"""Locate PRNG keys, for which NumPy has no type, inside a value, so that the fix in the message can be typed as it is written.

The rank that refuses a value knows an array, but not its name. One more request, to those ranks only, returns the path of the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mhnb.core.exchange.transfer import KEY_DATA_EXPRESSION, KEY_REFUSAL_CODE, Refusal, ValueDescription
from mhnb.exchange.asks import RankClient, request_all
from mhnb.sharding.layout import decode_tree

__all__ = ["locate_prng_keys"]

_KEY_DTYPE_PREFIX = "key<"
"""Prefix of the name of a key type: `key<fry>`."""


def locate_prng_keys(
    client: RankClient, name: str, answers: Mapping[int, ValueDescription | Refusal]
) -> dict[int, ValueDescription | Refusal]:
    """Put the key's own expression into the refusals for it, as `keys` or `state['k']`. Sends no request if there is no such refusal."""
    refused = {rank: row for rank, row in answers.items() if isinstance(row, Refusal) and row.code == KEY_REFUSAL_CODE}
    if not refused:
        return dict(answers)
    layouts = request_all(client, refused, "layout", {"expression": name})
    located = {rank: _locate_prng_key(name, refusal, layouts[rank].value) for rank, refusal in refused.items()}
    return {**answers, **located}


def _locate_prng_key(name: str, refusal: Refusal, layout: Mapping[str, Any]) -> Refusal:
    rows = decode_tree(layout["tree"]).rows if "tree" in layout else ()
    paths = [row.path for row in rows if row.layout is not None and row.layout.dtype.name.startswith(_KEY_DTYPE_PREFIX)]
    # In an object that is not a pytree a key has no path, and JAX writes `<flat index 0>` for a node without keys.
    if not paths or "<" in paths[0]:
        return refusal
    return replace(refusal, text=refusal.text.replace(KEY_DATA_EXPRESSION, f"jax.random.key_data({name}{paths[0]})"))

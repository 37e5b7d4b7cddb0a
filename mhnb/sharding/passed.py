"""Find the outputs of a lowered program that are unchanged arguments, and the arguments that a launch donates.

The former are copies, and mutable arrays that are only read.
"""

from __future__ import annotations

import re

__all__ = ["find_donated", "find_passthrough_outputs"]

_RETURN = re.compile(r"^\s*return (.+?) :", re.MULTILINE)
_ARGUMENT_INDEX = re.compile(r"%arg(\d+): ")
_DONATED = ("jax.buffer_donor = true", "tf.aliasing_output = ")
_IDENTITY_OPS = re.compile(
    r"^\s*(%\w+) = (?:sdy\.sharding_constraint|stablehlo\.optimization_barrier) (%\w+)(?= [:<])", re.MULTILINE
)
"""Operations that return their only operand unchanged."""


def find_passthrough_outputs(module: str) -> tuple[tuple[int, int], ...]:
    r"""Return the index of each unchanged output and of its argument, from 0.

    Args:
        module: the text of a StableHLO module.

    >>> find_passthrough_outputs("func.func public @main(%arg0: t, %arg1: t) -> (t, t) {\n    return %0, %arg1 : t, t\n  }")
    ((1, 1),)
    """
    _, _, main = module.partition("@main(")
    found = _RETURN.search(main)
    if found is None:
        return ()
    aliases: dict[str, str] = {}
    for result, operand in _IDENTITY_OPS.findall(main, 0, found.start()):
        aliases[result] = aliases.get(operand, operand)
    values = [aliases.get(value, value) for value in found[1].split(", ")]
    return tuple((place, int(value[4:])) for place, value in enumerate(values) if re.fullmatch(r"%arg\d+", value))


def find_donated(module: str) -> tuple[int, ...] | None:
    r"""Return the index of each donated argument, from 0; None if the text is not a StableHLO module.

    >>> find_donated("func.func public @main(%arg0: t {jax.buffer_donor = true}, %arg1: t) -> (t) {\n    return %0 : t\n  }")
    (0,)
    """
    _, found, main = module.partition("@main(")
    if not found:
        return None
    head, _, _ = main.partition("\n")
    _, *parts = _ARGUMENT_INDEX.split(head)
    return tuple(
        int(place)
        for place, text in zip(parts[::2], parts[1::2], strict=True)
        if any(each in text for each in _DONATED)
    )

"""Answer `%mhjax layout EXPRESSION` on a rank: where the value is stored, from metadata alone.

The expression is looked up, never run. Allowed are names, attributes and subscripts of containers, and containers of those.
Anything that could compute is refused, because a program launched here would be launched outside of any cell.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cached_property
from inspect import getattr_static
from typing import Any

import jax

from mhnb.errors import InvalidRequest
from mhnb.rank.asks.transfer_jax import has_layout, is_mesh, read_mesh, read_row, read_tree
from mhnb.sharding.layout import LayoutTree, encode_mesh, encode_tree

__all__ = ["describe_layout", "evaluate_metadata"]

_METADATA_ATTRIBUTES = ("sharding",)
"""Attributes of an array that compute nothing."""


def describe_layout(namespace: Mapping[str, Any], expression: str) -> dict[str, Any]:
    """Describe where the value of an expression is stored.

    Returns:
        `kind`: `mesh`, `array`, `tree`, or `error` with a `text`; and the value as encoded by `sharding.wire`.
    """
    try:
        value = evaluate_metadata(namespace, expression)
        if is_mesh(value):
            return {"kind": "mesh", "mesh": encode_mesh(read_mesh(value))}
        if has_layout(value):
            return {"kind": "array", "tree": encode_tree(LayoutTree((read_row("", value),)))}
        return {"kind": "tree", "tree": encode_tree(read_tree(value))}
    except InvalidRequest as error:
        return {"kind": "error", "text": str(error)}


def evaluate_metadata(namespace: Mapping[str, Any], expression: str) -> Any:
    """Return the value that an expression names.

    Raises:
        InvalidRequest: the expression is not valid, its value does not exist, or finding it would compute something.
    """
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise InvalidRequest(
            f"{expression!r} is no expression: {error.msg}; give a name, or an expression such as params['w']"
        ) from error
    return _SafeEvaluator(namespace).visit(tree)


class _SafeEvaluator(ast.NodeVisitor):
    """Evaluates an expression node by node, and refuses nodes that could compute something."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in self._namespace:
            raise InvalidRequest(f"there is no {node.id!r}; %mhjax vars lists what the ranks hold")
        return self._namespace[node.id]

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        owner = self.visit(node.value)
        if isinstance(owner, jax.Array):
            if node.attr not in _METADATA_ATTRIBUTES:
                raise self._refusal(node)
        elif _runs_code(owner, node.attr):
            raise self._refusal(node)
        try:
            return getattr(owner, node.attr)
        except AttributeError as error:
            raise InvalidRequest(f"{ast.unparse(node)}: {error}") from error

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        owner = self.visit(node.value)
        if isinstance(owner, jax.Array) or not isinstance(owner, Mapping | list | tuple):
            raise self._refusal(node)
        try:
            return owner[self.visit(node.slice)]
        except (LookupError, TypeError) as error:
            raise InvalidRequest(f"{ast.unparse(node)}: {type(error).__name__}: {error}") from error

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        number = self.visit(node.operand)
        if isinstance(node.op, ast.USub) and type(number) is int:
            return -number
        raise self._refusal(node)

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(map(self.visit, node.elts))

    def visit_List(self, node: ast.List) -> Any:
        return list(map(self.visit, node.elts))

    def visit_Dict(self, node: ast.Dict) -> Any:
        if None in node.keys:
            raise self._refusal(node)
        return {self.visit(key): self.visit(value) for key, value in zip(node.keys, node.values, strict=True) if key}

    def generic_visit(self, node: ast.AST) -> Any:
        raise self._refusal(node)

    @staticmethod
    def _refusal(node: ast.AST) -> InvalidRequest:
        return InvalidRequest(
            f"{ast.unparse(node)} may compute something, and between cells nothing is run;"
            " bind it to a name in a %%mhjax cell, then: %mhjax layout NAME"
        )


def _runs_code(owner: object, name: str) -> bool:
    """Return whether reading an attribute runs code. Properties of JAX's meshes and shardings launch nothing."""
    found = getattr_static(type(owner), name, None)
    return isinstance(found, property | cached_property) and not type(owner).__module__.startswith("jax.")

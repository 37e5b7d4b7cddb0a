"""Colours of code: Python with the magics of IPython, and Python below a `%%mhjax` line, which IPython's lexer would leave plain."""

from __future__ import annotations

from typing import Any

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import bygroups
from pygments.token import Keyword, Operator, Text
from sphinx.application import Sphinx

_CELL_LINE = (r"^(\s*)(%%)(mhjax|local)\b([^\n]*\n?)", bygroups(Text, Operator, Keyword, Text))


class MhjaxLexer(IPython3Lexer):  # type: ignore[misc]  # the package has no types
    """IPython's code, with `%%mhjax` and `%%local` cells as Python."""

    name = "mhjax"
    tokens = {**IPython3Lexer.tokens, "root": [_CELL_LINE, *IPython3Lexer.tokens["root"]]}  # noqa: RUF012  # as Pygments wants it


def setup(app: Sphinx) -> dict[str, Any]:
    """Use it for all code of a page or notebook that is called Python."""
    for name in ("python", "ipython", "ipython3"):
        app.add_lexer(name, MhjaxLexer)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

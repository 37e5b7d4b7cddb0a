"""The verbs of `%mhjax` that look at shardings: `layout` and `plan`."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from mhnb import starting
from mhnb.boards import gather_places
from mhnb.core.expression import unquote
from mhnb.core.variables import say_ranks
from mhnb.exchange.layouts import LayoutView, ask_layout
from mhnb.notebook import Notebook
from mhnb.sharding.layout import Layout
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.reshard import plan_reshard
from mhnb.sharding.tree import LayoutTree
from mhnb.view.draw import format_layout_text
from mhnb.view.drawhtml import format_layout_html
from mhnb.view.layouttable import format_tree_html, format_tree_text
from mhnb.view.meshmap import format_mesh_html, format_mesh_text
from mhnb.view.mime import pre
from mhnb.view.reshard import format_reshard_html, format_reshard_text
from mhnb.view.screen import Screen, detect_screen
from mhnb.view.style import RED, wrap
from mhnb.view.words import Places

__all__ = ["EXPRESSION_VERBS", "VERBS", "show_views"]


def _layout(notebook: Notebook, args: argparse.Namespace) -> None:
    del notebook
    expression = " ".join(args.expression)
    cluster = starting.current()
    views = ask_layout(cluster, expression)
    places = gather_places(cluster)
    if args.to is not None:
        _reshard(expression, views, unquote(args.to), places)
    elif args.csv is not None:
        _write_csv(expression, views, Path(unquote(args.csv)))
    else:
        show_views(expression, views, places)


def _one(expression: str, views: Sequence[LayoutView], flag: str) -> Any:
    """What all ranks say, for a flag that needs one answer."""
    if len(views) > 1:
        who = "; ".join(f"{say_ranks(view.ranks)}" for view in views)
        raise UsageError(f"{flag}: the ranks differ about {expression} ({who}); %mhjax layout {expression} shows how")
    return views[0].seen


def _reshard(expression: str, views: Sequence[LayoutView], to: str, places: Places) -> None:
    before = _one(expression, views, "--to")
    if not isinstance(before, Layout) or before.mesh is None:
        raise UsageError(f"--to needs one array on a mesh, and {expression} is none; name a leaf of it")
    after = Layout.of(before.shape, before.mesh, to, dtype=before.dtype)
    plan = plan_reshard(before, after, places.hosts)
    html = format_reshard_html(plan, name=expression, places=places, uid=_new_uid())
    _show(html, format_reshard_text(plan, name=expression, places=places))


def _write_csv(expression: str, views: Sequence[LayoutView], path: Path) -> None:
    seen = _one(expression, views, "--csv")
    if not isinstance(seen, LayoutTree):
        raise UsageError(f"--csv writes the table of a pytree, and {expression} is none")
    path.write_text(seen.to_csv(), encoding="utf-8")
    print(f"mhjax · {len(seen.rows)} rows written to {path}")


def show_views(
    name: str, views: Sequence[LayoutView], places: Places | None = None, screen: Screen | None = None
) -> None:
    """Show what the ranks say of a value: one drawing where they agree, each of theirs where they do not."""
    heading = ""
    if len(views) > 1:
        odd = ", ".join(say_ranks(view.ranks) for view in views[1:])
        heading = f"the ranks differ about {name}: {odd} against {say_ranks(views[0].ranks)}"
    parts = [_forms(name, view, places, several=len(views) > 1) for view in views]
    text = "\n\n".join(([heading] if heading else []) + [text for _, text in parts])
    alarm = wrap(f'<div style="color:{RED}"><b>{heading}</b></div>') if heading else ""
    _show(alarm + "".join(html for html, _ in parts), text, screen)


def _forms(name: str, view: LayoutView, places: Places | None, *, several: bool) -> tuple[str, str]:
    """HTML and text of one view."""
    seen, notes = view.seen, _notes(view)
    if isinstance(seen, str):
        text = f"{say_ranks(view.ranks)}: {seen}"
        return pre(text), text
    title = f"{name} on {say_ranks(view.ranks)}" if several else name
    if isinstance(seen, Layout):
        html = format_layout_html(seen, name=title, places=places, notes=notes, uid=_new_uid())
        return html, format_layout_text(seen, name=title, places=places, notes=notes)
    if isinstance(seen, MeshShape):
        return (
            format_mesh_html(seen, name=title, places=places),
            format_mesh_text(seen, name=title, places=places),
        )
    return format_tree_html(seen, name=title, notes=notes), format_tree_text(seen, name=title, notes=notes)


def _notes(view: LayoutView) -> tuple[str, ...]:
    if not view.is_local or len(view.ranks) == 1:
        return ()
    return (f"local: {say_ranks(view.ranks)} each hold arrays of their own; shown are those of rank {view.ranks[0]}",)


def _show(html: str, text: str, screen: Screen | None = None) -> None:
    (screen or detect_screen()).show({"text/html": html, "text/plain": text}, _new_uid())


def _new_uid() -> str:
    return f"mhnb-{secrets.token_hex(6)}"


def _layout_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("expression", nargs="+", metavar="EXPRESSION", help="an array, a pytree or a mesh of the ranks")
    parser.add_argument("--to", metavar="SPEC", help="what moves when it is resharded, as P(None, 'model')")
    parser.add_argument("--csv", metavar="FILE", help="write a pytree's table to a file")


VERBS = {"layout": (_layout, _layout_flags)}
EXPRESSION_VERBS = frozenset({"layout"})
"""Verbs whose words may be code, quotes and brackets included."""

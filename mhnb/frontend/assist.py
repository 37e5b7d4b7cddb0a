"""IPython hooks that help while the user types: auto mode, Tab completion, `name?`, and hints for names defined on the ranks.

Everything uses IPython's own hooks and queries one rank, the first rank of the cell. A busy rank gives no answer and does not
block typing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from concurrent.futures import wait
from traceback import walk_tb
from typing import Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)

from mhnb.core.asked.select import route_cell
from mhnb.core.ranks import say_ranks
from mhnb.errors import CellError, ClusterError, InvalidRequest
from mhnb.frontend.notebook import Notebook
from mhnb.frontend.pause import Pause
from mhnb.frontend.shortcut import Shortcut
from mhnb.frontend.tab import complete_line, is_magic_line
from mhnb.launch.profile import user_profiles
from mhnb.startup import starting
from mhnb.system.resources import list_profiles
from mhnb.view.ansi import ansi_to_html

__all__ = ["Assist"]

_ANSWER_S = 0.5
_OFFERED_RANKS = 10
_RANKS = re.compile(r"--ranks[ =]+'?\"?([0-9]{1,9})")


class Assist:
    """The hooks installed in one shell. `uninstall` removes all of them."""

    def __init__(self, shell: Any, notebook: Notebook, cell_parser: argparse.ArgumentParser) -> None:
        self._shell, self._notebook, self._cell_parser = shell, notebook, cell_parser

        # IPython reads a matcher's `__qualname__` and sets attributes on it. Among callables only a function supports
        # both.
        @context_matcher(identifier="mhnb")  # type: ignore[untyped-decorator]  # IPython's own has no types
        def match(context: CompletionContext) -> SimpleMatcherResult:
            return self._match(context)

        self._matcher = match
        self._in_ranks_cell = False
        """Whether the name being inspected is in a cell that runs on the ranks."""
        self._asked_rank = 0
        self._transformers = (self._route, _with_body)
        self._shortcut = Shortcut(shell, self._transformers)
        self._pause = Pause(shell, lambda: notebook.was_blank)
        self._own_inspect = shell._inspect
        self._own_mime = shell.object_inspect_mime
        self._own_debugger = shell.debugger
        self._own_custom_exceptions = (shell.custom_exceptions, shell.CustomTB)
        self._kernel = getattr(shell, "kernel", None)
        self._own_do_inspect = getattr(self._kernel, "do_inspect", None)

    def install(self) -> None:
        """Install the hooks."""
        shell = self._shell
        shell.input_transformers_cleanup.extend(self._transformers)
        shell.Completer.custom_matchers.append(self._matcher)
        shell._inspect = self._inspect
        shell.object_inspect_mime = self._inspect_mime
        shell.debugger = self._debugger
        if self._kernel is not None:
            self._kernel.do_inspect = self._do_inspect
        shell.set_custom_exc((NameError,), self._name_error)
        self._shortcut.install()
        self._pause.install()

    def uninstall(self) -> None:
        """Remove the hooks and restore what they replaced."""
        shell = self._shell
        self._pause.uninstall()
        self._shortcut.uninstall()
        for transform in self._transformers:
            shell.input_transformers_cleanup.remove(transform)
        shell.Completer.custom_matchers.remove(self._matcher)
        shell._inspect, shell.object_inspect_mime = self._own_inspect, self._own_mime
        shell.debugger = self._own_debugger
        if self._kernel is not None:
            self._kernel.do_inspect = self._own_do_inspect
        shell.custom_exceptions, shell.CustomTB = self._own_custom_exceptions

    # -- auto mode

    def _route(self, lines: list[str]) -> list[str]:
        source = "".join(lines)
        if not self._notebook.auto:
            return _without_local(lines) if source.lstrip().startswith("%%local") else lines
        try:
            route = route_cell(source)
        except InvalidRequest:
            # Treat it as a rank cell: the magic rejects it again, and raises a usage error in the right cell.
            route = "ranks"
        if route == "ranks":
            return ["%%mhjax --auto\n", *lines]
        return _without_local(lines) if route == "local" else lines

    # A terminal checks whether a cell is complete. It should check the code as typed, because a cell magic only ends at
    # an empty line.
    _route.has_side_effects = True  # type: ignore[attr-defined]  # IPython skips transformers with this mark in that check

    def _runs_on_ranks(self, source: str) -> bool:
        """Return whether a cell, possibly incomplete, will run on the ranks."""
        if source.lstrip().startswith("%%mhjax"):
            return True
        try:
            return self._notebook.auto and route_cell(source) == "ranks"
        except InvalidRequest:
            return False

    # -- Tab

    def _match(self, context: CompletionContext) -> SimpleMatcherResult:
        lines = context.full_text.split("\n")
        line = lines[context.cursor_line][: context.cursor_position]
        first = not "".join(lines[: context.cursor_line]).strip()
        if is_magic_line(line, first=first):
            words, fragment = complete_line(line, self._cell_parser, self._names_for)
            return _matched(words, fragment, "param")
        if self._runs_on_ranks(context.full_text):
            return self._match_on_rank(lines, context)
        return {"completions": []}

    def _match_on_rank(self, lines: list[str], context: CompletionContext) -> SimpleMatcherResult:
        before = sum(len(line) + 1 for line in lines[: context.cursor_line]) + context.cursor_position
        head = next((at for at, line in enumerate(lines) if line.strip()), 0)
        skip = sum(len(line) + 1 for line in lines[: head + 1]) if lines[head].startswith("%%mhjax") else 0
        if before < skip:
            return {"completions": []}
        rank = _first_rank(lines[head])
        value = self._ask("complete", rank=rank, text=context.full_text[skip:], cursor=before - skip)
        if not value:
            return {"completions": []}
        return _matched(value["matches"], context.full_text[skip + value["start"] : before], "rank")

    def _names_for(self, what: str) -> Iterable[str]:
        """Return the names that a command or a flag accepts."""
        if what in ("pull", "layout", "check", "collectives"):
            return self._ask("names") or []
        if what == "push":
            hidden = self._shell.user_ns_hidden
            return [name for name in self._shell.user_ns if name not in hidden and not name.startswith("_")]
        if what == "--ranks":
            return _rank_sets(starting.current().process_count) if starting.all_clusters() else []
        if what == "--profile":
            return [*list_profiles(), *user_profiles()]
        return [cluster.name for cluster in starting.all_clusters()] if what in ("stop", "where") else []

    # -- ? and Shift-Tab

    def _inspect(self, meth: str, oname: str, namespaces: Any = None, **kwargs: Any) -> Any:
        known = meth != "pinfo" or self._shell._ofind(oname, namespaces).found
        if not known and (data := self._ask_about(oname, kwargs.get("detail_level", 0))):
            from IPython.core import page

            page.page(data)
            return None
        return self._own_inspect(meth, oname, namespaces, **kwargs)

    def _do_inspect(self, code: str, *args: Any, **kwargs: Any) -> Any:
        """Wrap the kernel's `do_inspect`, the only hook that receives the whole cell."""
        assert self._own_do_inspect is not None
        self._in_ranks_cell = self._runs_on_ranks(code)
        self._asked_rank = _first_rank(code.lstrip().partition("\n")[0])
        try:
            return self._own_do_inspect(code, *args, **kwargs)
        finally:
            self._in_ranks_cell, self._asked_rank = False, 0

    def _inspect_mime(self, oname: str, detail_level: int = 0, **kwargs: Any) -> Any:
        if self._in_ranks_cell and (data := self._ask_about(oname, detail_level)):
            return data
        try:
            return self._own_mime(oname, detail_level, **kwargs)
        except KeyError:
            if data := self._ask_about(oname, detail_level):
                return data
            raise

    def _ask_about(self, name: str, detail: int) -> dict[str, str]:
        value = self._ask("inspect", rank=self._asked_rank, name=name, detail=detail)
        if not (value and value["found"]):
            return {}
        # The value may differ on another rank.
        text = f"On rank {self._asked_rank}\n{value['data']['text/plain']}"
        # ipykernel removes text/html from the bundle, and replies "not found" if it is missing.
        return {**value["data"], "text/plain": text, "text/html": f"<pre>{ansi_to_html(text)}</pre>"}

    # -- a name that only the ranks have

    def _name_error(
        self, shell: Any, etype: type[BaseException], error: NameError, tb: Any, tb_offset: Any = None
    ) -> None:
        name = error.name or ""
        shell.showtraceback((etype, error, tb), tb_offset=tb_offset)
        if name and any(name in names for names in self._ask_all("names")):
            # Functions, classes and above all modules are not variables, and most of them cannot be sent.
            is_value = any(name in variables for variables in self._ask_all("vars"))
            pull = f", or bring it here with %mhjax pull {name}" if is_value else ""
            print(f"{name!r} lives on the ranks: use it in a %%mhjax cell{pull}")

    # -- %debug after a %%mhjax cell

    def _debugger(self, force: bool = False) -> None:  # noqa: FBT001, FBT002  # IPython's own signature
        """Report where a `%%mhjax` cell raised, because the frames in this process are all mhnb's own."""
        error = getattr(sys, "last_value", None)
        # Compare by identity: hashing a code object hashes its constants, which may be unhashable.
        ours = any(
            frame.f_code is Notebook.run_cell.__code__ for frame, _ in walk_tb(getattr(sys, "last_traceback", None))
        )
        if not isinstance(error, CellError) or not ours:
            self._own_debugger(force=force)
            return
        # A cell that was interrupted before it was sent has no result.
        failed = error.result.failed if error.result is not None else ()
        whose = say_ranks(rank.rank for rank in failed) if failed else "no rank"
        print(
            f"There is nothing to debug here: the error was raised on {whose}, and ranks have no keyboard. Print there what you"
            " want to see, in a %%mhjax cell, or bring it here with %mhjax pull NAME."
        )

    def _ask(self, verb: str, *, rank: int = 0, **arguments: Any) -> Any:
        """Send a request to one rank; return None if there is no cluster, or the rank is busy or lost."""
        return next(iter(self._ask_all(verb, rank=rank, **arguments)), None)

    def _ask_all(self, verb: str, *, rank: int | None = None, **arguments: Any) -> list[Any]:
        """Send a request to all ranks, or one, and return the answers that arrive within `_ANSWER_S`.

        Empty if there is no cluster or a cell is running.
        """
        try:
            cluster = starting.current()
            if cluster.state in ("running", "starting"):
                return []
            ranks = [each for each in range(cluster.process_count) if rank in (None, each)]
            asked = [cluster.ask(each, verb, arguments) for each in ranks]
            done, _ = wait(asked, _ANSWER_S)
            answers = [question.result() for question in asked if question in done]
        except ClusterError:
            return []
        return [answer.value for answer in answers if answer.ok]


def _first_rank(line: str) -> int:
    """Return the first rank in a first line such as `%%mhjax --ranks 2-3`; 0 if the line names no rank."""
    named = _RANKS.search(line) if line.lstrip().startswith("%%mhjax") else None
    return int(named[1]) if named else 0


def _rank_sets(count: int) -> list[str]:
    """Return some rank sets to offer: each of the first ranks alone, and all ranks."""
    return [*map(str, range(min(count, _OFFERED_RANKS))), *([f"0-{count - 1}"] if count > 1 else [])]


def _matched(words: Iterable[str], fragment: str, kind: str) -> SimpleMatcherResult:
    return {
        "completions": [SimpleCompletion(text=word, type=kind) for word in words],
        "matched_fragment": fragment,
        # The notebook's own names, magics and files do not apply here.
        "suppress": True,
        "ordered": True,
    }


def _with_body(lines: list[str]) -> list[str]:
    """Add an empty body to a `%%mhjax` line without one, because IPython would reject it and suggest the line magic."""
    if len(lines) == 1 and lines[0].split()[:1] == ["%%mhjax"]:
        return [lines[0].rstrip("\n") + "\n", "\n"]
    return lines


# Without this mark IPython also uses the transformer to check whether a cell is complete, and the first Enter would end
# the cell.
_with_body.has_side_effects = True  # type: ignore[attr-defined]  # where IPython looks for it


def _without_local(lines: list[str]) -> list[str]:
    """Remove the line `%%local`. A line with arguments stays, so that the magic can reject it."""
    first = next(index for index, line in enumerate(lines) if line.strip().startswith("%%local"))
    return lines if lines[first].strip() != "%%local" else lines[first + 1 :] or ["\n"]

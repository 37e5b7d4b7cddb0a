"""IPython hooks: auto mode, Tab completion, `name?`, hints, and `%debug`.

Everything uses IPython's own hooks and queries one rank, the first rank of the cell; `name?` queries all of them. A busy rank
gives no answer and does not block typing. The completion of `%mhjax` and `%%mhjax` lines uses the text before the cursor and
the argument parsers that will parse the line.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from traceback import walk_tb
from types import TracebackType
from typing import Any

from IPython.core import page
from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.error import UsageError

from mhnb.cluster import manager
from mhnb.cluster.requests import interrupting_requests
from mhnb.core.cell_request import find_first_code, find_misplaced_magic, lift_cell_magic, route_cell
from mhnb.core.ranks import format_ranks
from mhnb.core.variables import choose_description
from mhnb.errors import CellError, ClusterError, InvalidRequest, MhnbError, NotStarted
from mhnb.launchers.profiles import user_profiles
from mhnb.magics.cell_place import CellTracker
from mhnb.magics.commands import command_parser, find_command, list_names
from mhnb.magics.debugging import debug_last_failure
from mhnb.magics.hints import CellHints
from mhnb.magics.session import Session, can_type
from mhnb.system.help_topics import list_topics
from mhnb.system.resources import list_profiles
from mhnb.view.document import Code
from mhnb.view.live.screen import show_document
from mhnb.view.print_html import print_parts
from mhnb.view.reports.error import build_error, summarize_error

NameProvider = Callable[[str], Iterable[str]]
"""Returns the names that a command or flag accepts: rank variables for `pull`, notebook names for `push`, or profiles."""


def is_magic_line(line: str, *, first: bool) -> bool:
    """Return whether a line is a `%mhjax` or `%%mhjax` line to complete."""
    word = line.split()[:1]
    return (word == ["%mhjax"] or (first and word == ["%%mhjax"])) and line.lstrip() != word[0]


def complete_line(line: str, cell_parser: argparse.ArgumentParser, names: NameProvider) -> tuple[list[str], str]:
    """Find the completions of a line.

    Args:
        line: the line up to the cursor, for which `is_magic_line` is true.
        cell_parser: the parser of `%%mhjax`.
        names: see `NameProvider`.

    Returns:
        The matching words, and the end of the line that each of them replaces.
    """
    *before, last = line.lstrip().split(" ")
    words = [word for word in before if word]
    command = "" if words[0] == "%%mhjax" else words[1] if len(words) > 1 else None
    if command is None:
        return _filter_by_prefix(last, list_names()), last
    if command == "help":
        return _filter_by_prefix(last, [*list_names(), *list_topics()]), last
    found = find_command(command)
    parser = cell_parser if command == "" else None if found is None else command_parser(command)
    if parser is None:
        return [], last
    command = found.name if found is not None else ""
    flag, equals, value = last.partition("=")
    if equals:
        return _filter_by_prefix(value, _flag_values(_find_flag(parser, flag), names)), value
    flag_action = _find_flag(parser, words[-1])
    if flag_action is not None and flag_action.nargs != 0:
        # After a flag whose value may be left out, another flag may follow.
        others = _unused_flags(parser, words) if flag_action.nargs == "?" else ()
        return _filter_by_prefix(last, [*_flag_values(flag_action, names), *others]), last
    return _filter_by_prefix(last, [*_positional_values(parser, command, names), *_unused_flags(parser, words)]), last


def _filter_by_prefix(prefix: str, words: Iterable[str]) -> list[str]:
    return sorted({word for word in words if word.startswith(prefix)}, key=lambda word: (word.startswith("-"), word))


def _find_flag(parser: argparse.ArgumentParser, flag: str) -> argparse.Action | None:
    return next((action for action in parser._actions if flag in action.option_strings), None)


def _choices(action: argparse.Action | None) -> list[str]:
    return [] if action is None or action.choices is None else [str(choice) for choice in action.choices]


def _flag_values(action: argparse.Action | None, names: NameProvider) -> Iterable[str]:
    if action is None:
        return []
    return _choices(action) or (name for flag in action.option_strings for name in names(flag))


def _unused_flags(parser: argparse.ArgumentParser, used: Iterable[str]) -> Iterator[str]:
    """Yield the unused flags, in the spelling that the help shows first."""
    for action in parser._actions:
        spellings = [flag for flag in action.option_strings if flag.startswith("--")] or action.option_strings
        if spellings and action.help != argparse.SUPPRESS and not set(action.option_strings) & set(used):
            yield spellings[0]


def _positional_values(parser: argparse.ArgumentParser, command: str, names: NameProvider) -> Iterator[str]:
    for action in parser._actions:
        if not action.option_strings:
            yield from _choices(action) or names(command)


# -- IPython hooks that help while typing


_DETAIL_OF_PINFO = {"pinfo": 0, "pinfo2": 1}
"""IPython's line magics for `name?` and `name??`, and the level of detail of each."""
MISPLACED_FLAG = "--misplaced"
"""The flag of the `%%mhjax` line that is put above a cell with such a line in its middle; its value is that line's index."""
_ANSWER_TIMEOUT_S = 0.5
_MAX_OFFERED_RANKS = 10
_RANKS_FLAG = re.compile(r"(?:--ranks[ =]+'?\"?|%%mhjax +)([0-9]{1,9})")


class ShellHooks:
    """The hooks installed in one shell. `uninstall` removes all of them."""

    def __init__(self, shell: Any, session: Session, cell_parser: argparse.ArgumentParser) -> None:
        self._shell, self._session, self._cell_parser = shell, session, cell_parser

        # IPython reads a matcher's `__qualname__` and sets attributes on it. Among callables only a function supports
        # both.
        @context_matcher(identifier="mhnb")  # type: ignore[untyped-decorator]  # IPython's own has no types
        def match(context: CompletionContext) -> SimpleMatcherResult:
            return self._match(context)

        self._matcher = match
        self._cells = CellTracker(shell)
        self._is_rank_cell = False
        """Whether the name being inspected is in a cell that runs on the ranks."""
        self._inspected_rank = 0
        self._transformers = (lift_cell_magic, _mark_misplaced_magic, self._route, _add_empty_body)
        # Looked up by name: the table may hold a placeholder, which looks the magic up when it is called, and would find mhnb's.
        self._original_pinfo = {name: shell.find_line_magic(name) for name in _DETAIL_OF_PINFO}
        self._original_inspect_mime = shell.object_inspect_mime
        self._original_debugger = shell.debugger
        self._original_custom_exceptions = (shell.custom_exceptions, shell.CustomTB)
        self._hints = CellHints(shell, lambda: session.is_auto_mode)
        self._kernel = getattr(shell, "kernel", None)
        self._original_do_inspect = getattr(self._kernel, "do_inspect", None)

    def install(self) -> None:
        """Install the hooks."""
        shell = self._shell
        self._cells.install()
        self._session.find_place = self._cells.find_place
        self._session.can_type = functools.partial(can_type, shell)
        shell.input_transformers_cleanup.extend(self._transformers)
        shell.Completer.custom_matchers.append(self._matcher)
        for name, detail in _DETAIL_OF_PINFO.items():
            shell.register_magic_function(self._make_pinfo(self._original_pinfo[name], detail), "line", name)
        shell.object_inspect_mime = self._inspect_mime
        shell.debugger = self._debugger
        if self._kernel is not None:
            self._kernel.do_inspect = self._do_inspect
        # Other shells print an error as text, and IPython does that.
        own_errors = (MhnbError, UsageError) if self._kernel is not None else ()
        shell.set_custom_exc((NameError, *own_errors), self._show_error)
        self._hints.install()

    def uninstall(self) -> None:
        """Remove the hooks and restore what they replaced."""
        shell = self._shell
        self._hints.uninstall()
        self._cells.uninstall()
        for transform in self._transformers:
            shell.input_transformers_cleanup.remove(transform)
        shell.Completer.custom_matchers.remove(self._matcher)
        shell.magics_manager.magics["line"].update(self._original_pinfo)
        shell.object_inspect_mime = self._original_inspect_mime
        shell.debugger = self._original_debugger
        if self._kernel is not None:
            self._kernel.do_inspect = self._original_do_inspect
        shell.custom_exceptions, shell.CustomTB = self._original_custom_exceptions

    # -- auto mode

    def _route(self, lines: list[str]) -> list[str]:
        source = "".join(lines)
        if not self._session.is_auto_mode:
            return _strip_local(lines) if source.lstrip().startswith("%%local") else lines
        try:
            route = route_cell(source)
        except InvalidRequest:
            # Treat it as a rank cell: the magic rejects it again, and raises a usage error in the right cell.
            route = "ranks"
        if route == "ranks":
            return ["%%mhjax --auto\n", *lines]
        return _strip_local(lines) if route == "local" else lines

    # A terminal checks whether a cell is complete. It should check the code as typed, because a cell magic only ends at
    # an empty line.
    _route.has_side_effects = True  # type: ignore[attr-defined]  # IPython skips transformers with this mark in that check

    def _runs_on_ranks(self, source: str) -> bool:
        """Return whether a cell, possibly incomplete, will run on the ranks."""
        if _first_code_line(source).startswith("%%mhjax"):
            return True
        try:
            return self._session.is_auto_mode and route_cell(source) == "ranks"
        except InvalidRequest:
            return False

    # -- Tab

    def _match(self, context: CompletionContext) -> SimpleMatcherResult:
        lines = context.full_text.split("\n")
        line = lines[context.cursor_line][: context.cursor_position]
        first = find_first_code(lines[: context.cursor_line]) is None
        if is_magic_line(line, first=first):
            words, fragment = complete_line(line, self._cell_parser, self._names_for)
            return _build_completions(words, fragment, "param")
        if self._runs_on_ranks(context.full_text):
            return self._match_on_rank(lines, context)
        return {"completions": []}

    def _match_on_rank(self, lines: list[str], context: CompletionContext) -> SimpleMatcherResult:
        before = sum(len(line) + 1 for line in lines[: context.cursor_line]) + context.cursor_position
        head = find_first_code(lines) or 0
        skip = sum(len(line) + 1 for line in lines[: head + 1]) if lines[head].startswith("%%mhjax") else 0
        if before < skip:
            return {"completions": []}
        rank = _first_rank(lines[head])
        value = self._request_one("complete", rank=rank, text=context.full_text[skip:], cursor=before - skip)
        if not value:
            return {"completions": []}
        return _build_completions(value["matches"], context.full_text[skip + value["start"] : before], "rank")

    def _names_for(self, argument: str) -> Iterable[str]:
        """Return the names that a command or a flag accepts."""
        if argument in ("pull", "layout", "check", "collectives", "eval"):
            return self._request_one("names") or []
        if argument == "push":
            hidden = self._shell.user_ns_hidden
            return [name for name in self._shell.user_ns if name not in hidden and not name.startswith("_")]
        if argument == "debug":
            return self._suggest_failed_ranks()
        if argument in ("--ranks", "--debug", "logs"):
            return _suggest_rank_sets(manager.current().process_count) if manager.all_clusters() else []
        if argument == "--profile":
            return [*list_profiles(), *user_profiles()]
        return [cluster.name for cluster in manager.all_clusters()] if argument in ("stop", "where", "detach") else []

    def _suggest_failed_ranks(self) -> list[str]:
        """Return rank sets for `%mhjax debug`: single failed ranks, and all."""
        failure = self._session.failures.get(manager.current()) if manager.all_clusters() else None
        failed = [rank.rank for rank in failure.failed] if failure is not None else []
        return [*map(str, failed[:_MAX_OFFERED_RANKS]), *([format_ranks(failed)] if len(failed) > 1 else [])]

    # -- ? and Shift-Tab

    def _make_pinfo(self, original: Callable[..., Any], detail: int) -> Callable[..., Any]:
        """Wrap the magic for `name?` to describe names that only ranks have."""

        @functools.wraps(original)
        def pinfo(parameter_s: str = "", *args: Any, **kwargs: Any) -> Any:
            # A `?` that is left belongs to `?name?` or `%pinfo name?`, which ask for more detail.
            name = parameter_s.removeprefix("pinfo ").strip("? ")
            more = detail or int("?" in parameter_s)
            is_local = "*" in name or self._shell.object_inspect(name)["found"]
            if not is_local and (data := self._request_inspection(name, more, all_ranks=True)):
                page.page(data)
                return None
            return original(parameter_s, *args, **kwargs)

        return pinfo

    def _do_inspect(self, code: str, *args: Any, **kwargs: Any) -> Any:
        """Wrap the kernel's `do_inspect`, the only hook that receives the whole cell."""
        assert self._original_do_inspect is not None
        self._is_rank_cell = self._runs_on_ranks(code)
        self._inspected_rank = _first_rank(_first_code_line(code))
        try:
            return self._original_do_inspect(code, *args, **kwargs)
        finally:
            self._is_rank_cell, self._inspected_rank = False, 0

    def _inspect_mime(self, oname: str, detail_level: int = 0, **kwargs: Any) -> Any:
        if self._is_rank_cell:
            # A name that no rank has may be one of IPython's own, such as a magic.
            return self._request_inspection(oname, detail_level) or self._original_inspect_mime(
                oname, detail_level, **kwargs
            )
        try:
            return self._original_inspect_mime(oname, detail_level, **kwargs)
        except KeyError:
            if data := self._request_inspection(oname, detail_level):
                return data
            raise

    def _request_inspection(self, name: str, detail: int, *, all_ranks: bool = False) -> dict[str, str]:
        """Return a bundle describing a name and its ranks; empty if unknown.

        While the user types one rank is enough, unless it does not have the name.
        """
        rank = None if all_ranks else self._inspected_rank
        answers = self._request_all("inspect", rank=rank, name=name, detail=detail)
        found = {each: value["data"] for each, value in answers.items() if value["found"]}
        if not found:
            # A rank that did not answer is busy, and so are the others: asking them would only take more time.
            may_be_elsewhere = bool(answers) and not all_ranks
            return self._request_inspection(name, detail, all_ranks=True) if may_be_elsewhere else {}
        texts = {each: data["text/plain"] for each, data in found.items()}
        missing = sorted(answers.keys() - found.keys())
        shown, where = choose_description(texts, missing, self._inspected_rank)
        text = f"{where}\n{texts[shown]}"
        # ipykernel removes text/html from the bundle, and replies "not found" if it is missing.
        return {**found[shown], "text/plain": text, "text/html": print_parts([Code(text)])}

    # -- an error that ends a cell

    def _show_error(
        self, shell: Any, etype: type[BaseException], error: BaseException, tb: Any, tb_offset: Any = None
    ) -> None:
        """Show an error of mhnb as a card and one line.

        IPython calls this only for errors that the cell does not catch. If another extension sets its own handler later, IPython
        shows the whole text of mhnb's errors.
        """
        # An error with a short text has been shown, as the report of a cell.
        if isinstance(error, MhnbError) and not error.short_text:
            show_document(build_error(etype.__name__, "\n".join(error._render_traceback_())))
            error.short_text = summarize_error(str(error))
            try:
                shell.showtraceback((etype, error, tb), tb_offset=tb_offset)
            finally:
                # `%tb`, or another cell that raises the error again, shows all of it.
                error.short_text = ""
        elif etype is UsageError and _was_raised_by_mhnb(tb):
            show_document(build_error(etype.__name__, f"UsageError: {error}"))
            _show_usage_line(shell, error, tb)
        else:
            shell.showtraceback((etype, error, tb), tb_offset=tb_offset)
        if isinstance(error, NameError):
            self._print_where_defined(error.name or "")

    def _print_where_defined(self, name: str) -> None:
        """Print that only the ranks have a name, if so."""
        if name and any(name in names for names in self._request_all("names").values()):
            # Functions, classes and above all modules are not variables, and most of them cannot be sent.
            is_value = any(name in variables for variables in self._request_all("vars").values())
            pull = f", or copy it here with %mhjax pull {name}" if is_value else ""
            print(f"{name!r} is defined on the ranks, not in this notebook: use it in a %%mhjax cell{pull}")

    # -- %debug after a %%mhjax cell

    def _debugger(self, force: bool = False) -> None:  # noqa: FBT001, FBT002  # IPython's own signature
        """Debug the ranks after a failed `%%mhjax` cell, not mhnb's own frames."""
        if not _was_raised_by_ranks(getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)):
            self._original_debugger(force=force)
            return
        is_shown_now = sys.exc_info()[1] is not None
        try:
            debug_last_failure(self._session)
        except (UsageError, MhnbError) as error:
            if is_shown_now:
                # After `%pdb on` IPython calls this while it shows the cell's error, where nothing would catch another one.
                print(f"%pdb: {error}", file=sys.stderr)
            elif isinstance(error, InvalidRequest | NotStarted):
                raise UsageError(f"%debug: {error}") from error
            else:
                raise

    def _request_one(self, handler: str, *, rank: int = 0, **arguments: Any) -> Any:
        """Send a request to one rank; return None without an answer."""
        return self._request_all(handler, rank=rank, **arguments).get(rank)

    def _request_all(self, handler: str, *, rank: int | None = None, **arguments: Any) -> dict[int, Any]:
        """Ask all ranks, or one; return answers within `_ANSWER_TIMEOUT_S` by rank.

        Empty if there is no cluster or a cell is running.
        """
        try:
            cluster = manager.current()
            if cluster.state in ("running", "starting"):
                return {}
            ranks = [each for each in range(cluster.process_count) if rank in (None, each)]
            with interrupting_requests(cluster):
                futures = cluster.ask_all(ranks, handler, arguments)
                done, _ = wait(futures.values(), _ANSWER_TIMEOUT_S)
            answers = {each: future.result() for each, future in futures.items() if future in done}
        except ClusterError:
            return {}
        return {each: answer.value for each, answer in answers.items() if answer.ok}


def _was_raised_by_mhnb(traceback: TracebackType | None) -> bool:
    """Return whether mhnb raised a `UsageError`, and not IPython."""
    return any(str(frame.f_globals.get("__name__")).startswith("mhnb.") for frame, _ in walk_tb(traceback))


def _show_usage_line(shell: Any, error: BaseException, traceback: TracebackType | None) -> None:
    """Send a usage error as an error output with one line.

    IPython prints a `UsageError` to stderr, and then nbclient and saved notebooks have no error.
    """
    line = f"UsageError: {summarize_error(str(error))}"
    shown = type("UsageError", (UsageError,), {"_render_traceback_": lambda _: [line]})(*error.args)
    shown.__cause__ = error
    # `%pdb on` opens no debugger for a `UsageError`.
    call_pdb, shell.call_pdb = shell.call_pdb, False
    try:
        shell.showtraceback((type(shown), shown, traceback))
    finally:
        shell.call_pdb = call_pdb


def _was_raised_by_ranks(error: BaseException | None, traceback: TracebackType | None) -> bool:
    """Return whether a rank cell, or `debug_last_failure`, raised an error."""
    while error is not None:
        codes = [frame.f_code for frame, _ in walk_tb(traceback)]
        # Compare by identity: hashing a code object hashes its constants, which may be unhashable.
        if any(code is debug_last_failure.__code__ for code in codes):
            return True
        if isinstance(error, CellError) and any(code is Session.run_cell.__code__ for code in codes):
            return True
        error = error.__cause__
        traceback = None if error is None else error.__traceback__
    return False


def _first_code_line(source: str) -> str:
    """Return the first line of code without indentation, or an empty string."""
    lines = source.split("\n")
    first = find_first_code(lines)
    return "" if first is None else lines[first].lstrip()


def _first_rank(line: str) -> int:
    """Return the first rank of a line like `%%mhjax 2-3`, or 0."""
    named = _RANKS_FLAG.search(line) if line.lstrip().startswith("%%mhjax") else None
    return int(named[1]) if named else 0


def _suggest_rank_sets(count: int) -> list[str]:
    """Return rank sets to offer: the first ranks singly, and all."""
    return [*map(str, range(min(count, _MAX_OFFERED_RANKS))), *([f"0-{count - 1}"] if count > 1 else [])]


def _build_completions(words: Iterable[str], fragment: str, kind: str) -> SimpleMatcherResult:
    return {
        "completions": [SimpleCompletion(text=word, type=kind) for word in words],
        "matched_fragment": fragment,
        # The notebook's own names, magics and files do not apply here.
        "suppress": True,
        "ordered": True,
    }


def _mark_misplaced_magic(lines: list[str]) -> list[str]:
    """Pass a cell with code above its `%%mhjax` line to the magic.

    The magic raises a usage error, which a transformer cannot. Otherwise IPython would first run the code above it.
    """
    misplaced = find_misplaced_magic(lines)
    return lines if misplaced is None else [f"%%mhjax {MISPLACED_FLAG} {misplaced}\n", *lines]


_mark_misplaced_magic.has_side_effects = True  # type: ignore[attr-defined]  # a terminal should check the code as typed


def _add_empty_body(lines: list[str]) -> list[str]:
    """Add an empty body to a lone `%%mhjax`, which IPython would reject."""
    if len(lines) == 1 and lines[0].split()[:1] == ["%%mhjax"]:
        return [lines[0].rstrip("\n") + "\n", "\n"]
    return lines


# Without this mark IPython also uses the transformer to check whether a cell is complete, and the first Enter would end
# the cell.
_add_empty_body.has_side_effects = True  # type: ignore[attr-defined]  # where IPython looks for it


def _strip_local(lines: list[str]) -> list[str]:
    """Remove the line `%%local`, unless it has arguments, which the magic rejects."""
    first = next(index for index, line in enumerate(lines) if line.strip().startswith("%%local"))
    return lines if lines[first].strip() != "%%local" else lines[first + 1 :] or ["\n"]

"""What helps while typing: auto mode, Tab, `name?`, and the word that a name lives on the other side.

All of it hangs on IPython's own hooks and asks rank 0 at most; a rank that is busy gives no answer, and typing goes on without one.
"""

from __future__ import annotations

from concurrent.futures import TimeoutError as AnswerTimeout
from functools import partial
from typing import Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)

from mhnb import starting
from mhnb.core.select import route_cell
from mhnb.errors import ClusterError, InvalidRequest
from mhnb.notebook import Notebook
from mhnb.verbs import VERBS, verb_flags

__all__ = ["Assist"]

_ANSWER_S = 0.5
_CELL_FLAGS = ("--collectives", "--guard", "--out", "--quiet", "--ranks", "--timeout", "--view")
_CHOICES = {"--guard": ("lockstep", "off", "parity"), "--view": ("fold", "grid", "tabs")}


class Assist:
    """Hooks of one shell; `uninstall` takes every one back."""

    def __init__(self, shell: Any, notebook: Notebook) -> None:
        self._shell, self._notebook = shell, notebook
        # IPython sets attributes on a matcher, which a bound method does not take.
        self._matcher = context_matcher(identifier="mhnb")(partial(self._match))
        self._own_inspect = shell._inspect
        self._own_mime = shell.object_inspect_mime
        self._own_custom_exceptions = (shell.custom_exceptions, shell.CustomTB)

    def install(self) -> None:
        """Hang in."""
        shell = self._shell
        shell.input_transformers_cleanup.append(self._route)
        shell.Completer.custom_matchers.append(self._matcher)
        shell._inspect = self._inspect
        shell.object_inspect_mime = self._inspect_mime
        shell.set_custom_exc((NameError,), self._name_error)

    def uninstall(self) -> None:
        """Take everything back."""
        shell = self._shell
        shell.input_transformers_cleanup.remove(self._route)
        shell.Completer.custom_matchers.remove(self._matcher)
        shell._inspect, shell.object_inspect_mime = self._own_inspect, self._own_mime
        shell.custom_exceptions, shell.CustomTB = self._own_custom_exceptions

    # -- auto mode

    def _route(self, lines: list[str]) -> list[str]:
        if not self._notebook.auto:
            return lines
        try:
            route = route_cell("".join(lines))
        except InvalidRequest:
            # The magic refuses it again, as a usage error in the cell's own place.
            route = "ranks"
        if route == "ranks":
            return ["%%mhjax --auto\n", *lines]
        if route == "local":
            first = next(index for index, line in enumerate(lines) if line.strip().startswith("%%local"))
            return lines[first + 1 :] or ["\n"]
        return lines

    # -- Tab

    def _match(self, context: CompletionContext) -> SimpleMatcherResult:
        text = context.full_text
        first, _, _ = text.partition("\n")
        if context.cursor_line == 0 and first.lstrip().startswith(("%mhjax", "%%mhjax")):
            found = self._match_flags(first[: context.cursor_position], context.token)
        elif first.startswith("%%mhjax") or (self._notebook.auto and not text.startswith(("%mhjax", "%%local"))):
            return self._match_names(context)
        else:
            found = []
        return {"completions": [SimpleCompletion(text=word, type="param") for word in found]}

    @staticmethod
    def _match_flags(line: str, token: str) -> list[str]:
        words = line.split()
        last = words[-1] if words and not line.endswith(" ") else ""
        before = words[-2] if last and len(words) > 1 else (words[-1] if words else "")
        cell = words[0] == "%%mhjax"
        if before in _CHOICES:
            wanted: list[str] = list(_CHOICES[before])
        elif cell:
            wanted = list(_CELL_FLAGS)
        elif len(words) < 2 or (len(words) == 2 and last):
            wanted = list(VERBS)
        else:
            wanted = verb_flags(words[1])
        # The completer replaces its own token, which may begin after the dashes.
        cut = len(last) - len(token) if last.endswith(token) else 0
        return [word[cut:] for word in wanted if word.startswith(last)]

    def _match_names(self, context: CompletionContext) -> SimpleMatcherResult:
        lines = context.full_text.split("\n")
        cursor = sum(len(line) + 1 for line in lines[: context.cursor_line]) + context.cursor_position
        skip = len(lines[0]) + 1 if lines[0].startswith("%%mhjax") else 0
        value = self._ask("complete", text=context.full_text[skip:], cursor=cursor - skip)
        if not value:
            return {"completions": []}
        typed = cursor - skip - value["start"]
        fragment = context.full_text[cursor - typed : cursor]
        return {
            "completions": [SimpleCompletion(text=match, type="rank") for match in value["matches"]],
            "matched_fragment": fragment,
            # The notebook's own names mean nothing in a cell that runs on the ranks.
            "suppress": True,
        }

    # -- ? and Shift-Tab

    def _inspect(self, meth: str, oname: str, namespaces: Any = None, **kwargs: Any) -> Any:
        if meth == "pinfo" and not self._shell._ofind(oname, namespaces).found and (data := self._ask_about(oname)):
            from IPython.core import page

            page.page({"data": data, "start": 0, "text/plain": data.get("text/plain", "")})
            return None
        return self._own_inspect(meth, oname, namespaces, **kwargs)

    def _inspect_mime(self, oname: str, detail_level: int = 0, **kwargs: Any) -> Any:
        try:
            return self._own_mime(oname, detail_level, **kwargs)
        except KeyError:
            if data := self._ask_about(oname):
                return data
            raise

    def _ask_about(self, name: str) -> dict[str, str]:
        value = self._ask("inspect", name=name, detail=0)
        return dict(value["data"]) if value and value["found"] else {}

    # -- a name of the other side

    def _name_error(
        self, shell: Any, etype: type[BaseException], error: NameError, tb: Any, tb_offset: Any = None
    ) -> None:
        name = error.name or ""
        shell.showtraceback((etype, error, tb), tb_offset=tb_offset)
        value = self._ask("names")
        if name and value and name in value:
            print(f"{name!r} lives on the ranks: use it in a %%mhjax cell, or bring it here with %mhjax pull {name}")

    def _ask(self, verb: str, **arguments: Any) -> Any:
        """Ask rank 0; None where there is no cluster, or the rank is busy."""
        try:
            cluster = starting.current()
            if cluster.state in ("running", "starting"):
                return None
            answer = cluster.ask(0, verb, arguments).result(_ANSWER_S)
        except (ClusterError, AnswerTimeout):
            return None
        return answer.value if answer.ok else None

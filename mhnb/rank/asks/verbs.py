"""Dispatch table of the requests that a rank answers between cells.

Handlers run on the rank's main thread and launch nothing on a device.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from mhnb.core.wire.protocol import Answer, Ask
from mhnb.rank.asks import check, code, layout, pip, sync
from mhnb.rank.asks.transfer import Depot, Reply
from mhnb.rank.asks.variables import describe_variables, user_names

__all__ = ["Question", "VERBS", "answer"]

_DEPOTS: dict[int, Depot] = {}
"""The transfers of each rank of this process. A process is one rank, except in tests."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request, and the objects that it is about."""

    arguments: Mapping[str, Any]
    payload: tuple[Any, ...]
    namespace: dict[str, Any]
    depot: Depot
    shell: Any

    @property
    def hidden(self) -> dict[str, Any]:
        """Names that IPython put into the namespace itself, with their values."""
        return cast("dict[str, Any]", getattr(self.shell, "user_ns_hidden", {}))


def _hold(q: Question) -> Reply:
    q.depot.keep_only(q.arguments["live"])
    here = {name: q.namespace[name] for name in q.arguments["names"] if name in q.namespace}
    answer, payload = q.depot.hold(q.arguments["transfer"], here, digest_local=q.arguments["digest_local"])
    known = user_names(q.namespace, q.hidden)
    answer["missing"] = {
        name: difflib.get_close_matches(name, known, 3) for name in q.arguments["names"] if name not in here
    }
    return answer, payload


def _fetch(q: Question) -> Reply:
    return q.depot.fetch(q.arguments["transfer"], q.arguments["part"], q.arguments["start"], q.arguments["stop"])


def _release(q: Question) -> Reply:
    return q.depot.release([q.arguments["transfer"]])


def _receive(q: Question) -> Reply:
    q.depot.keep_only(q.arguments["live"])
    return q.depot.receive(q.arguments["transfer"], q.arguments["sizes"])


def _fill(q: Question) -> Reply:
    for place, data in zip(q.arguments["places"], q.payload, strict=True):
        q.depot.fill(q.arguments["transfer"], place[0], place[1], data)
    return None, ()


def _stage(q: Question) -> Reply:
    return q.depot.stage(q.arguments["transfer"], q.arguments["values"], q.namespace)


def _commit(q: Question) -> Reply:
    return q.depot.commit(q.arguments["transfer"], q.namespace)


def _vars(q: Question) -> Reply:
    facts = describe_variables(q.namespace, q.hidden)
    return {name: row.to_wire() for name, row in facts.items()}, ()


def _names(q: Question) -> Reply:
    return user_names(q.namespace, q.hidden), ()


def _check(q: Question) -> Reply:
    there = {name: q.namespace[name] for name in q.arguments["names"] if name in q.namespace}
    return {name: check.describe_leaves(value) for name, value in there.items()}, ()


def _layout(q: Question) -> Reply:
    return layout.describe_layout(q.namespace, q.arguments["expression"]), ()


def _complete(q: Question) -> Reply:
    return code.complete(q.shell, q.arguments["text"], q.arguments["cursor"]), ()


def _inspect(q: Question) -> Reply:
    return code.inspect(q.shell, q.arguments["name"], q.arguments.get("detail", 0)), ()


def _collectives(q: Question) -> Reply:
    # Imported only here: the modules that read programs take 0.02 s to import, and most clusters never need them.
    from mhnb.rank.asks import collectives

    return collectives.describe_call(q.arguments["call"], q.namespace, user_names(q.namespace, q.hidden)), ()


def _launched(q: Question) -> Reply:
    from mhnb.rank.asks import collectives

    return collectives.describe_launched(q.arguments["seq"]), ()


def _look_at_files(q: Question) -> Reply:
    return sync.look_at_files(q.arguments["place"], q.arguments["files"]), ()


def _write_files(q: Question) -> Reply:
    sync.write_files(q.arguments["folder"], q.arguments["pieces"], q.payload)
    return None, ()


def _finish_files(q: Question) -> Reply:
    return sync.finish_files(q.arguments["folder"], q.arguments["paths"]), ()


def _describe_environment(_: Question) -> Reply:
    return pip.describe_environment(), ()


def _pip(q: Question) -> Reply:
    return pip.run_pip(q.arguments["words"]), ()


VERBS: dict[str, Callable[[Question], Reply]] = {
    "check": _check,
    "collectives": _collectives,
    "commit": _commit,
    "complete": _complete,
    "describe_environment": _describe_environment,
    "fetch": _fetch,
    "fill": _fill,
    "finish_files": _finish_files,
    "hold": _hold,
    "inspect": _inspect,
    "launched": _launched,
    "layout": _layout,
    "look_at_files": _look_at_files,
    "names": _names,
    "pip": _pip,
    "receive": _receive,
    "release": _release,
    "stage": _stage,
    "vars": _vars,
    "write_files": _write_files,
}


def answer(ask: Ask, namespace: dict[str, Any], *, rank: int, shell: Any) -> Answer:
    """Handle a request about a namespace. Every error becomes a reply that is not ok."""
    question = Question(ask.arguments, ask.payload, namespace, _DEPOTS.setdefault(rank, Depot()), shell)
    try:
        value, payload = VERBS[ask.verb](question)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - becomes the reply
        # Ctrl-C, too: it ends the request, not the rank.
        reason = {
            "ename": type(error).__name__,
            "evalue": str(error),
            "traceback": "".join(traceback.format_exception(error)),
        }
        return Answer(rank, ask.ask_id, ok=False, value=reason)
    # The payload consists of views of the arrays themselves, which the transport sends without a copy.
    return Answer(rank, ask.ask_id, ok=True, value=value, payload=cast("tuple[bytes, ...]", payload))

"""Dispatch table of the requests that a rank answers between cells.

Handlers run on the rank's main thread and launch nothing on a device.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from msgspec.structs import replace

from mhnb.adapters.variables import describe_variables, user_names
from mhnb.core.arguments import closest_matches
from mhnb.core.messages import RankReply, RankRequest
from mhnb.core.typed_json import to_json_types
from mhnb.rank.execution.cell_names import CELL_NAMES
from mhnb.rank.execution.exceptions import name_of, text_of
from mhnb.rank.execution.interrupts import InterruptDelivery
from mhnb.rank.requests import files, inspection, sharding
from mhnb.rank.requests.transfer import HandlerResult, TransferStore

_TRANSFER_STORES: dict[int, TransferStore] = {}
"""The transfers of each rank of this process. A process is one rank, except in tests."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request, and the objects that it is about."""

    arguments: Mapping[str, Any]
    payload: tuple[Any, ...]
    namespace: dict[str, Any]
    transfers: TransferStore
    shell: Any

    @property
    def hidden(self) -> dict[str, Any]:
        """Names that IPython put into the namespace itself, with their values."""
        return cast("dict[str, Any]", getattr(self.shell, "user_ns_hidden", {}))


def _describe_values(context: RequestContext) -> HandlerResult:
    context.transfers.release_others(context.arguments["live"])
    found = {name: context.namespace[name] for name in context.arguments["names"] if name in context.namespace}
    reply, payload = context.transfers.describe(
        context.arguments["transfer"], found, digest_local=context.arguments["digest_local"]
    )
    known = user_names(context.namespace, context.hidden)
    missing = {name: tuple(closest_matches(name, known)) for name in context.arguments["names"] if name not in found}
    return replace(reply, missing=missing), payload


def _fetch(context: RequestContext) -> HandlerResult:
    return context.transfers.fetch(
        context.arguments["transfer"], context.arguments["part"], context.arguments["start"], context.arguments["stop"]
    )


def _release(context: RequestContext) -> HandlerResult:
    return context.transfers.release([context.arguments["transfer"]])


def _allocate(context: RequestContext) -> HandlerResult:
    context.transfers.release_others(context.arguments["live"])
    return context.transfers.allocate(context.arguments["transfer"], context.arguments["sizes"])


def _write(context: RequestContext) -> HandlerResult:
    for target, data in zip(context.arguments["places"], context.payload, strict=True):
        context.transfers.write(context.arguments["transfer"], target[0], target[1], data)
    return None, ()


def _build(context: RequestContext) -> HandlerResult:
    return context.transfers.build(context.arguments["transfer"], context.arguments["values"], context.namespace)


def _commit(context: RequestContext) -> HandlerResult:
    return context.transfers.commit(context.arguments["transfer"], context.namespace)


def _vars(context: RequestContext) -> HandlerResult:
    facts = describe_variables(context.namespace, context.hidden)
    return facts, ()


def _names(context: RequestContext) -> HandlerResult:
    return user_names(context.namespace, context.hidden), ()


def _check(context: RequestContext) -> HandlerResult:
    found = {name: context.namespace[name] for name in context.arguments["names"] if name in context.namespace}
    return {name: inspection.describe_leaves(value) for name, value in found.items()}, ()


def _layout(context: RequestContext) -> HandlerResult:
    known = user_names(context.namespace, context.hidden)
    return sharding.describe_layout(context.namespace, context.arguments["expression"], known), ()


def _complete(context: RequestContext) -> HandlerResult:
    return inspection.complete(context.shell, context.arguments["text"], context.arguments["cursor"]), ()


def _inspect(context: RequestContext) -> HandlerResult:
    return inspection.inspect(context.shell, context.arguments["name"], context.arguments.get("detail", 0)), ()


def _collectives(context: RequestContext) -> HandlerResult:
    return sharding.describe_call(
        context.arguments["call"], context.namespace, user_names(context.namespace, context.hidden)
    ), ()


def _fit(context: RequestContext) -> HandlerResult:
    # Imported only here: `jax.export` takes a moment, and most clusters never need it.
    from mhnb.rank.requests.fit import describe_export

    known = user_names(context.namespace, context.hidden)
    return describe_export(context.arguments["call"], context.namespace, known, context.arguments), ()


def _launched(context: RequestContext) -> HandlerResult:
    return sharding.describe_launched(context.arguments["seq"]), ()


def _trace(context: RequestContext) -> HandlerResult:
    from mhnb.core.trace import pack_trace
    from mhnb.rank.trace import find_trace

    return None, (memoryview(pack_trace(find_trace(context.arguments["seq"]).read())),)


def _read_profile(context: RequestContext) -> HandlerResult:
    from mhnb.rank.trace import find_trace

    data = find_trace(context.arguments["seq"]).data
    return None, (memoryview(data)[context.arguments["start"] : context.arguments["stop"]],)


def _release_trace(context: RequestContext) -> HandlerResult:
    from mhnb.rank.trace import release_trace

    release_trace(context.arguments["seq"])
    return None, ()


def _memory(context: RequestContext) -> HandlerResult:
    # Imported only here: most clusters never need it.
    from mhnb.rank.memory import describe_memory

    cell = getattr(context.shell, "cell", None)
    return describe_memory(context.namespace, context.hidden, seq=0 if cell is None else cell.seq), ()


def _list_missing_files(context: RequestContext) -> HandlerResult:
    return files.list_missing_files(context.arguments["place"], context.arguments["files"]), ()


def _write_files(context: RequestContext) -> HandlerResult:
    files.write_files(context.arguments["folder"], context.arguments["pieces"], context.payload)
    return None, ()


def _finish_files(context: RequestContext) -> HandlerResult:
    return files.finish_files(context.arguments["folder"], context.arguments["paths"]), ()


def _describe_environment(_: RequestContext) -> HandlerResult:
    return files.describe_environment(), ()


def _pip(context: RequestContext) -> HandlerResult:
    return files.run_pip(context.arguments["words"]), ()


HANDLERS: dict[str, Callable[[RequestContext], HandlerResult]] = {
    "allocate": _allocate,
    "build": _build,
    "check": _check,
    "collectives": _collectives,
    "fit": _fit,
    "commit": _commit,
    "complete": _complete,
    "describe": _describe_values,
    "describe_environment": _describe_environment,
    "fetch": _fetch,
    "finish_files": _finish_files,
    "inspect": _inspect,
    "launched": _launched,
    "layout": _layout,
    "list_missing_files": _list_missing_files,
    "memory": _memory,
    "names": _names,
    "pip": _pip,
    "read_profile": _read_profile,
    "release": _release,
    "release_trace": _release_trace,
    "trace": _trace,
    "vars": _vars,
    "write": _write,
    "write_files": _write_files,
}


def handle_request(
    request: RankRequest, namespace: dict[str, Any], *, rank: int, shell: Any, interrupts: InterruptDelivery
) -> RankReply:
    """Handle a request; errors and interrupts become replies that are not ok."""
    context = RequestContext(
        request.arguments, request.payload, namespace, _TRANSFER_STORES.setdefault(rank, TransferStore()), shell
    )
    CELL_NAMES.kernel = request.kernel

    def work() -> RankReply:
        try:
            value, payload = HANDLERS[request.handler](context)
            # The payload consists of views of the arrays themselves, which the transport sends without a copy.
            views = cast("tuple[bytes, ...]", payload)
            return RankReply(rank, request.request_id, ok=True, value=to_json_types(value), payload=views)
        except BaseException as error:  # noqa: BLE001 - becomes the reply: code of a value may raise SystemExit, too
            # Here, because the text of the error is computed by the user's code, too.
            return _make_failed_reply(request, rank, error)

    if request.handler == "commit":
        # A push is bound on all ranks or on none, and all can bind it by now: an interrupt comes too late.
        interrupts.restore_handler()
        return work()
    try:
        return interrupts.run_request(work)
    except KeyboardInterrupt as error:
        # It arrived while an error was being described.
        return RankReply(rank, request.request_id, ok=False, value=_describe(error, ""))


def _make_failed_reply(request: RankRequest, rank: int, error: BaseException) -> RankReply:
    value = _describe(error, "".join(traceback.format_exception(error)))
    return RankReply(rank, request.request_id, ok=False, value=value)


def _describe(error: BaseException, text: str) -> dict[str, str]:
    return {"ename": name_of(error), "evalue": text_of(error), "traceback": text}

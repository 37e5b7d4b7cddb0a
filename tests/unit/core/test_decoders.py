"""For any bytes a decoder either returns a value of its type or raises the documented error."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mhnb.core.codec import decode, encode
from mhnb.core.error_site import ErrorSite
from mhnb.core.guard.agreement import (
    LAUNCH_DECISION,
    CellFinished,
    LaunchProposal,
    Propose,
    Withdraw,
    decode_decision,
    decode_from_rank,
    encode_decision,
    encode_from_rank,
)
from mhnb.core.guard.host_data import HashSummary, HostDataRow
from mhnb.core.guard.launch_report import LaunchPlace, LaunchReport, LaunchRow, PendingPlace
from mhnb.core.guard.provenance import InputRow
from mhnb.core.journal import parse_records
from mhnb.core.launch.ssh import SshOptions
from mhnb.core.launch.tasks import TaskOutput
from mhnb.core.messages import (
    Breakpoint,
    CallbackFailed,
    CellEnded,
    DebugInput,
    DebugMode,
    DebugPrompt,
    DebugResumed,
    Heartbeat,
    HostSpec,
    HostUp,
    LaunchCount,
    Message,
    OutputProduced,
    RankExited,
    RankReady,
    RankReply,
    RankStatus,
    RunCell,
    format_hostspec,
    parse_hostspec,
)
from mhnb.core.output.events import ClearOutput, ErrorRaised, Stream
from mhnb.core.state.events import CellRequest, CellSubmitted
from mhnb.core.state.machine import ClusterStateMachine
from mhnb.core.state.rank_registry import RankRegistry
from mhnb.errors import UnknownMessage, VersionMismatch
from mhnb.transport.framing import FrameDecoder, encode_frames
from mhnb.transport.security import Decryptor, Encryptor, Signer, Verifier

T = TypeVar("T")
KEY = b"k" * 32
DEEPLY_NESTED = b"[" * 4_000
"""Deeper than Python's recursion limit."""
numbers = st.integers() | st.sampled_from([-1, 0, 1, 1 << 31, 1 << 63, 1 << 64, 10**400])
leaves = st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=8)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
texts = (
    values.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=64)
    | st.sampled_from([DEEPLY_NESTED, b"\xff"])
)
STATUS = RankStatus(1, 1, "launch", "f", 1, "", 0.5, [LaunchCount((0, 1), 1)], [0, 1], 1)
SUMMARY = HashSummary(1, "a", "b", "c", "f32[2]", "0000000000000040")
ENDED = CellEnded(
    1,
    1,
    "ok",
    [Stream("stdout", "x"), ClearOutput(wait=True)],
    0.1,
    LaunchReport(
        [LaunchRow("a", "f", (0, 1), 1, 1), LaunchRow("b", "g", (0, 1), None, 2)],
        [0, 1, 0],
        abandoned_launch=LaunchPlace("f", 1, 2),
        pending_launch=PendingPlace(1, 1),
        ignored_refusals=[LaunchPlace("f", 1)],
        refused_inputs=[InputRow(5, 1, "f32[]", "g", "0000000000000040")],
        host_arrays=[HostDataRow(1, (0, 1), "p", SUMMARY, {"0:2": SUMMARY})],
    ),
)
MESSAGES: list[Message] = [
    ENDED,
    OutputProduced(1, 1, [ErrorRaised("E", "e", ["x"], 1, "x", 0.1, ErrorSite("m", "f", "e", {"x": True}, True))]),
    STATUS,
    RankReply(1, 1, True, {"a": 1}, (b"x",)),
    HostUp(0, 1, "a", None, free_ports=[1]),
    Heartbeat(0, {"1": 5}, halted_ranks=[0]),
    RankExited(1, None, 9, ["x"]),
    RankReady(1, {"guard": {"available": True}}),
    RunCell(1, 1, "x = 1", debug=DebugMode("", [0], [Breakpoint(3, "rank == 2")])),
    DebugInput(1, 1, "p x"),
    DebugPrompt(1, 1, 1, "(Pdb) ", "> In [5], line 3\n", 3, True),
    CallbackFailed(1, 1, ErrorRaised("ValueError", "no", ["line"]), "jit(f)"),
    DebugResumed(1, 1, ""),
]


@given(texts)
@settings(deadline=None)
def test_any_bytes_are_refused_as_a_message(text: bytes) -> None:
    """Wrong form, depth, number length and encoding are all refused by `decode`."""
    for frames in ([text], [], [b'{"kind":"RankReply","value":' + text + b"}"], [b'{"kind":' + text + b"}"]):
        with pytest.raises(UnknownMessage):
            decode(frames)


@given(st.sampled_from(MESSAGES), st.data())
@settings(deadline=None, max_examples=150)
@pytest.mark.slow
def test_message_with_any_field_value_is_valid_or_refused(message: Message, data: st.DataObject) -> None:
    """An accepted message has fields of their declared types, and does not change when it is encoded again."""
    body = json.loads(encode(message)[0])
    name = data.draw(st.sampled_from([name for name in message.__struct_fields__ if name != "payload"]))
    body[name] = data.draw(values)
    text = json.dumps(body).encode()
    decoded = try_decoding(lambda: decode([text]))
    assert decoded is None or decode([*encode(decoded)]) == decoded


def try_decoding(read: Callable[[], T]) -> T | None:
    """Return the decoded value; None if it is refused, with a short error."""
    try:
        return read()
    except UnknownMessage as error:
        text = str(error)
    assert len(text) < 1000
    return None


def accepts_sender(registry: RankRegistry, peer: str, message: Message) -> bool:
    """Check whether the registry accepts the message from this peer."""
    try:
        registry.check_sender(peer, message)
    except UnknownMessage:
        return False
    return True


def inner_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in items for place in inner_paths(inner, (*path, key)))]


@given(st.sampled_from(MESSAGES), st.data())
@settings(deadline=None, max_examples=150)
@pytest.mark.slow
def test_any_accepted_message_is_handled(message: Message, data: st.DataObject) -> None:
    """Output, samples and the end of a cell that the decoder accepts break neither the cell nor its hang report."""
    wire = json.loads(encode(message)[0])
    path = data.draw(st.sampled_from([place for place in inner_paths(wire) if place and place != ("kind",)]))
    target = wire
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = data.draw(values)
    machine = ClusterStateMachine(RankRegistry(["a", "b"], ["x", "y"]), generation=1, now=0.0, start_timeout_s=60)
    for rank in (0, 1):
        machine.handle(RankReady(rank, {"guard": {"available": True}}), 0.0)
    machine.handle(CellSubmitted(1, CellRequest("x = 1")), 0.0)
    peer = "s0" if isinstance(message, HostUp | Heartbeat | RankExited) else "r1"
    decoded = try_decoding(lambda: decode([json.dumps(wire).encode()]))
    if decoded is None or not accepts_sender(machine.registry, peer, decoded):
        return
    if isinstance(decoded, CellEnded | OutputProduced | RankStatus | HostUp | Heartbeat | RankExited | RankReply):
        machine.handle(decoded, 1.0)
        if isinstance(decoded, CellEnded):
            machine.handle(replace(ENDED, rank=0), 2.0)
        machine.handle(replace(STATUS, rank=0), 1.0)
        assert machine.current is None or machine.current.result(2.0, 2)
        machine.build_hang_report(2.0)


AGREEMENT_MESSAGES: list[list[bytes]] = [
    encode_from_rank(Propose(1, LaunchProposal(1, 3, "f", (0, 1), (1,)))),
    encode_from_rank(Withdraw(1, 1)),
    encode_from_rank(CellFinished(1, 0)),
    encode_decision(1, LAUNCH_DECISION),
    [b'[1,["mismatch",false,1,[[0,3,[1],false,false,"ok",0,0]],{"3":"f"},{"3":"d"},{"1":"t"},""]]'],
]


@given(st.sampled_from(AGREEMENT_MESSAGES), texts, st.data())
@settings(deadline=None, max_examples=150)
@pytest.mark.slow
def test_any_proposal_or_decision_is_valid_or_refused(frames: list[bytes], text: bytes, data: st.DataObject) -> None:
    """An invalid message about a launch ends at most the sending host's connection."""
    row = json.loads(frames[0])
    path = data.draw(st.sampled_from(inner_paths(row)[1:]))
    target = row
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = data.draw(values)
    for message in ([json.dumps(row).encode()], [text], []):
        for read in (lambda said: decode_from_rank(said, 1, 2), decode_decision):
            try_decoding(partial(read, message))


@given(st.lists(st.binary(max_size=40), max_size=5))
@settings(deadline=None)
def test_any_stream_is_split_or_refused(pieces: list[bytes]) -> None:
    """A message announced as longer than the limit ends the stream before it is buffered."""
    decoder = FrameDecoder(64)
    for piece in pieces:
        messages = try_decoding(lambda piece=piece: list(decoder.feed(piece)))  # type: ignore[misc]
        if messages is None:
            return
        assert all(sum(map(len, frames)) <= 64 for frames in messages)
        assert len(decoder._buffer) <= 64


@pytest.mark.parametrize("make", [(Signer, Verifier), (Encryptor, Decryptor)])
@given(frames=st.lists(st.binary(max_size=40), max_size=4), cut=st.integers(0, 60))
@settings(deadline=None)
def test_frames_without_the_key_are_refused(
    make: tuple[Callable[[bytes, bytes], Signer], Callable[[bytes, bytes], Verifier]], frames: list[bytes], cut: int
) -> None:
    """Frames of any number and length are refused, and so are those of a message that was cut off."""
    signed = [bytes(frame) for frame in make[0](KEY, b"r0").sign([b"hello" * 10])]
    for received in (frames, [signed[0], *frames], [frame[:cut] for frame in signed], [*signed, b"more"]):
        if received != signed:
            with pytest.raises(UnknownMessage):
                make[1](KEY, b"r0").verify(received)


SPEC = HostSpec("tcp:127.0.0.1:1", "00", 0, 1, 1, [0], 1, "", {}, {}, "", "")


@given(texts, st.sampled_from(HostSpec.__struct_fields__), values)
@settings(deadline=None)
def test_any_other_line_is_refused_as_a_spec(text: bytes, name: str, value: Any) -> None:
    """This is the first line that a supervisor reads; a login shell may have printed something before it."""
    assert parse_hostspec(format_hostspec(SPEC)) == SPEC
    for line in (
        text.decode(errors="replace"),
        json.dumps(json.loads(format_hostspec(SPEC)) | {name: value, "more": 1}),
    ):
        with pytest.raises((UnknownMessage, VersionMismatch)):
            parse_hostspec(line)


@given(st.lists(texts, max_size=5), st.sampled_from(["cell", "push", "start", "accept", "replay"]), values)
@settings(deadline=None)
def test_any_journal_line_is_read_or_reported(lines: list[bytes], kind: str, value: Any) -> None:
    """A disk may contain any bytes; an unreadable line is reported, and the other lines are read."""
    line = json.dumps({"kind": kind, "seq": value, "generation": value, "ranks": "0-99999999999"}).encode()
    records, faults = parse_records(b"\n".join([*lines, line]))
    assert all(type(record.generation) is int for record in records)
    assert all(len(fault) < 1000 for fault in faults)


@given(st.text(max_size=80))
@settings(deadline=None)
def test_any_launcher_line_is_accepted(line: str) -> None:
    """mhnb has no influence on the output of srun and mpiexec."""
    output = TaskOutput()
    output.read([line, f"mhnb-task {line}", f"3: {line}", "mhnb-task 3 failed 1 beta"])
    assert 3 in output.failures(SshOptions(), "log")


def test_every_kind_of_message_is_decoded() -> None:
    """The check of field types knows every type that messages use."""
    assert len(get_args(Message)) == 29
    for message in MESSAGES:
        assert decode([bytes(frame) for frame in encode(message)]) == message
        assert encode_frames(encode(message))

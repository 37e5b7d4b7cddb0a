"""The flight recorder's file, read whole, torn, cut or damaged, and the comparison of the ranks' recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from mhnb.core.flight import (
    CAPACITY,
    FILE_NBYTES,
    KINDS,
    NEWEST_CELL_START,
    RECORD,
    RING_START,
    SETS_START,
    TEXT_NBYTES,
    Divergence,
    EventKind,
    FlightEvent,
    FlightHeader,
    RankFlight,
    build_report,
    decode_flight,
    describe_event,
    encode_flight,
    find_divergences,
    pack_header,
    parse_flight,
    report_values,
    wall_time_s,
)
from mhnb.core.typed_json import encode_json, to_json_types
from mhnb.system.flight import read_flight, read_last_event

SETS = ("", "0-3", "0-1")
"""The table of the file."""
HEADER = FlightHeader(2, 1, 4, 77, "alpha", "clock", 1_000_000_000_000, 5_000)


def pack(event: FlightEvent, *, trailing: int | None = None) -> bytes:
    """Pack an event as a rank does; `trailing` is the number at the end of a record that was torn."""
    text = event.program.encode()[:TEXT_NBYTES]
    return RECORD.pack(
        event.number,
        event.time_ns,
        KINDS.index(event.kind),
        len(text),
        SETS.index(event.participants),
        event.cell,
        event.line or 0,
        event.launch or 0,
        event.fingerprint,
        text,
        event.number if trailing is None else trailing,
    )


def make_file(*records: bytes, header: bytes = pack_header(HEADER), newest_cell: bytes = b"") -> bytes:
    """Make a file whose ring begins with these records."""
    sets = "".join(f"{each}\n" for each in SETS[1:]).encode()
    before = (header + sets).ljust(NEWEST_CELL_START, b"\0") + newest_cell
    return (before.ljust(RING_START, b"\0") + b"".join(records)).ljust(FILE_NBYTES, b"\0")


def launch(number: int, kind: EventKind = "launch", **fields: object) -> FlightEvent:
    """Make an event of a launch; fields that are not given are those of the first launch of cell 3 on all of 4 ranks."""
    given = {
        "cell": 3,
        "line": 7,
        "launch": 1,
        "fingerprint": 9,
        "program": "jit(step)",
        "participants": "0-3",
    } | fields
    return FlightEvent(number, 1000 * number, kind, **given)  # type: ignore[arg-type]


def begin(number: int, cell: int = 3, program: str = "In [5] lockstep") -> FlightEvent:
    """Make the event with which a cell begins."""
    return FlightEvent(number, 1000 * number, "cell", cell, program=program)


def rank(number: int, *events: FlightEvent, dropped: int = 0) -> RankFlight:
    """Make the recording of a rank."""
    return RankFlight(number, HEADER, events, dropped)


def first_divergence(flights: list[RankFlight]) -> Divergence | None:
    """Return the first difference between the ranks."""
    return next(iter(find_divergences(flights)), None)


# -- the file


def test_events_are_read_as_they_were_written() -> None:
    """Every field comes back, and what is 0 in the file is None."""
    events = (begin(1), launch(2, "proposal"), FlightEvent(3, 3000, "end", 3, program="ok"))
    assert parse_flight(2, make_file(*map(pack, events))) == RankFlight(2, HEADER, events)


@pytest.mark.parametrize("count", [1, CAPACITY - 1, CAPACITY, CAPACITY + 1, 3 * CAPACITY + 5])
def test_ring_keeps_the_newest_events(tmp_path: Path, count: int) -> None:
    """The last 4,096 are read in their order, the others are counted, and the newest is found without reading all."""
    slots = [b""] * min(count, CAPACITY)
    for number in range(1, count + 1):
        slots[(number - 1) % CAPACITY] = pack(FlightEvent(number, number, "launch", 1))
    data = make_file(*slots)
    flight = parse_flight(2, data)
    assert [event.number for event in flight.events] == list(range(max(1, count - CAPACITY + 1), count + 1))
    assert flight.dropped_count == max(0, count - CAPACITY)
    (tmp_path / "rank2.events").write_bytes(data)
    assert read_last_event(tmp_path / "rank2.events") == flight.events[-1]


@pytest.mark.parametrize("count", [3, CAPACITY + 3])
def test_torn_record_is_left_out(tmp_path: Path, count: int) -> None:
    """A record whose end is older than its beginning was being written when the rank was killed: the file is read up to there."""
    slots = [b""] * min(count, CAPACITY)
    for number in range(1, count + 1):
        trailing = max(0, number - CAPACITY) if number == count else None
        slots[(number - 1) % CAPACITY] = pack(FlightEvent(number, number, "launch", 1), trailing=trailing)
    flight = parse_flight(2, make_file(*slots))
    assert flight.is_torn
    assert flight.events[-1].number == count - 1
    assert flight.events[0].number == max(1, count - CAPACITY + 1)
    (tmp_path / "rank2.events").write_bytes(make_file(*slots))
    assert read_last_event(tmp_path / "rank2.events") == flight.events[-1]


@pytest.mark.parametrize("length", [RING_START, RING_START + 10, RING_START + 2 * RECORD.size + 1])
def test_cut_file_is_read_up_to_its_end(length: int) -> None:
    """Of a file that was copied while it was written, the complete records count."""
    flight = parse_flight(2, make_file(pack(begin(1)), pack(launch(2)), pack(launch(3)))[:length])
    assert (flight.problem, len(flight.events)) == ("", (length - RING_START) // RECORD.size)


@pytest.mark.parametrize("data", [b"", b"no header", b"{}" + b" " * FILE_NBYTES, bytes(FILE_NBYTES)])
def test_file_without_a_header_has_a_reason(tmp_path: Path, data: bytes) -> None:
    """A file that is not a recording is no reason to fail: the rank's row says why it has no events."""
    flight = parse_flight(2, data)
    assert (flight.header, flight.events) == (None, ())
    assert flight.problem.startswith("its file cannot be read: ")
    (tmp_path / "rank2.events").write_bytes(data)
    assert read_last_event(tmp_path / "rank2.events") is None


def test_missing_file_has_a_reason(tmp_path: Path) -> None:
    """A rank without a recorder is named with the path where its file would be."""
    path = tmp_path / "rank2.events"
    assert read_flight(path, 2).problem == f"it has no flight recorder: there is no {path}"
    assert read_last_event(path) is None


def test_record_of_an_unknown_kind_is_left_out() -> None:
    """A damaged record does not make the file unreadable."""
    record = bytearray(pack(launch(2)))
    record[16] = 200
    flight = parse_flight(2, make_file(pack(begin(1)), bytes(record)))
    assert [event.kind for event in flight.events] == ["cell"]
    assert flight.is_torn


@pytest.mark.parametrize(
    "name", ["jit(" + "x" * 100 + ")", "jit(räksmörgås" + "é" * 60 + ")", "jit(a\0b\x1b[1m\n)", ""]
)
def test_long_and_strange_names_are_shortened(name: str) -> None:
    """A name is cut at 56 bytes, in no character, and has nothing that a terminal would obey."""
    (read,) = parse_flight(2, make_file(pack(launch(1, program=""))[:40] + pack_name(name))).events
    assert read.participants == "0-3"
    assert name.translate({0: "?", 27: "?", 10: "?"}).startswith(read.program)
    assert len(read.program.encode()) <= TEXT_NBYTES
    assert read.program.isprintable()


def pack_name(name: str) -> bytes:
    """Pack the end of a first record with this name."""
    return name.encode()[:TEXT_NBYTES].ljust(TEXT_NBYTES, b"\0") + (1).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("rank", 1),
        ("rank", -1),
        ("process_count", 2),
        ("process_count", 10**9),
        ("wall_ns", 10**30),
        ("monotonic_ns", -1),
    ],
)
def test_damaged_header_has_a_reason(field: str, value: int) -> None:
    """Numbers that no rank writes, another format or another rank's file are a reason to read no event."""
    header = encode_json(to_json_types(HEADER) | {field: value}).encode().ljust(SETS_START)
    flight = parse_flight(2, make_file(pack(begin(1)), header=header))
    assert (flight.header, flight.events) == (None, ())
    assert flight.problem.startswith("its file cannot be read: ")


@pytest.mark.parametrize("line", [b"hello", b"0-9999999", b"0-999999999", b"3-0", b"\xff"])
def test_damaged_table_has_a_reason(line: bytes) -> None:
    """A set of ranks that do not exist is found before anything is made of it."""
    data = make_file(pack(launch(1))).replace(b"0-3\n", line + b"\n")
    assert parse_flight(2, data.ljust(FILE_NBYTES, b"\0")).problem.startswith("its file cannot be read: ")


def test_line_of_the_table_that_was_being_written_is_left_out() -> None:
    """A rank that was killed in the middle of an entry has not recorded an event with it."""
    data = make_file(pack(launch(1))).replace(b"0-1\n", b"0-1\0")
    (read,) = parse_flight(2, data).events
    assert read.participants == "0-3"


def test_newest_cell_is_known_after_it_was_overwritten() -> None:
    """A cell of many launches has its name, and its guard, all the same."""
    cell = begin(1, cell=7, program="In [9] off")
    slots = [pack(FlightEvent(number, number, "launch", 7)) for number in range(2, CAPACITY + 2)]
    data = make_file(slots[-1], *slots[:-1], newest_cell=pack(cell))
    flight = parse_flight(2, data)
    assert (flight.newest_cell, flight.events[0].number, flight.dropped_count) == (cell, 2, 1)
    report = build_report("main", [flight])
    assert (report.name_cell(7), report.unguarded_cells) == ("In [9]", (7,))


def test_name_that_no_rank_records_is_refused() -> None:
    """An event also comes in messages of hosts, and its text reaches the terminal."""
    for name in ("\x1b[31m", "a\nb", "x" * 1000):
        with pytest.raises(ValueError, match=r"no rank records"):
            FlightEvent(1, 1, "launch", 1, program=name)


def test_recording_survives_a_message() -> None:
    """A compressed recording is the same after it was sent, and what is not one is refused."""
    data = make_file(pack(begin(1)), pack(launch(2)))
    assert decode_flight(encode_flight(data)) == data
    for text in ("", "no base85 \\", encode_flight(data)[:-40]):
        with pytest.raises(ValueError, match=r"compressed events|base85"):
            decode_flight(text)


def test_time_is_the_system_time() -> None:
    """The time of an event follows from the two clocks at the start of the rank."""
    event = FlightEvent(1, HEADER.monotonic_ns + 2_500_000_000, "launch", 1)
    assert wall_time_s(rank(2, event), event) == pytest.approx(1002.5)


# -- the first difference


def test_ranks_that_did_the_same_do_not_differ() -> None:
    """Equal launches are no difference, at whatever times."""
    assert first_divergence([rank(r, begin(1), launch(2 + r)) for r in range(4)]) is None


def test_first_different_program_is_found() -> None:
    """The first launch with different programs is the difference, the larger group first."""
    same = [begin(1), launch(2), launch(3, launch=2), launch(4, launch=3)]
    other = [begin(1), launch(2), launch(3, launch=2, fingerprint=8, program="jit(other)", line=9), launch(4, launch=3)]
    found = first_divergence([rank(0, *same), rank(1, *other), rank(2, *same), rank(3, *same)])
    assert found is not None
    assert (found.cell, found.launch, found.participants) == (3, 2, (0, 1, 2, 3))
    assert [side.ranks for side in found.sides] == [(0, 2, 3), (1,)]
    assert [side.event and side.event.program for side in found.sides] == ["jit(step)", "jit(other)"]


def test_same_program_on_different_lines_is_no_difference() -> None:
    """The branches of an `if` may launch the same program, and the guard lets them."""
    flights = [rank(r, begin(1), launch(2, "proposal", line=7 + r % 2), launch(3, line=7 + r % 2)) for r in range(4)]
    assert find_divergences(flights) == ()


def test_refused_launch_of_the_same_program_is_a_difference() -> None:
    """Ranks that propose one program on different arrays are refused it; that is where they differed."""
    steps = begin(1), launch(2, "proposal"), launch(3, "refusal")
    (found,) = find_divergences([rank(r, *steps) for r in range(4)])
    assert (found.launch, found.has_ended) == (1, True)
    assert [(side.ranks, side.event and side.event.kind) for side in found.sides] == [((0, 1, 2, 3), "refusal")]


def test_rank_that_did_not_come_is_named_with_its_last_event() -> None:
    """A rank without the launch is one side, with what it did last in the cell."""
    waiting = [begin(1), launch(2), launch(3, "proposal", launch=2)]
    absent = [begin(1), launch(2), FlightEvent(3, 3000, "end", 3, program="ok")]
    found = first_divergence([rank(0, *waiting), rank(1, *absent), rank(2, *waiting), rank(3, *waiting)])
    assert found is not None
    assert [(side.ranks, side.event is None) for side in found.sides] == [((0, 2, 3), False), ((1,), True)]
    assert found.sides[1].last is not None
    assert describe_event(found.sides[1].last, "In [{}]".format) == "ended In [3] (ok)"


def test_first_difference_of_each_cell_is_found() -> None:
    """After a refused launch the ranks go on: each cell has its own first difference."""
    refused = [begin(1), launch(2, "proposal"), launch(3, "proposal", launch=2), begin(4, cell=4), launch(5, cell=4)]
    other = [
        begin(1),
        launch(2, "proposal", fingerprint=8),
        launch(3, "proposal", fingerprint=8, launch=2),
        begin(4, cell=4),
    ]
    found = find_divergences([rank(0, *refused), rank(1, *other), rank(2, *refused), rank(3, *refused)])
    assert [(each.cell, each.launch) for each in found] == [(3, 1), (4, 1)]


def test_launches_of_one_process_are_not_compared() -> None:
    """A program without other participants has no launch number, and each rank may have its own."""
    own = launch(2, launch=None, participants="")
    assert first_divergence([rank(0, begin(1), own), rank(1, begin(1))]) is None


def test_ranks_outside_of_a_launch_are_not_compared() -> None:
    """A launch of ranks 0-1 says nothing about ranks 2-3."""
    pair = launch(2, participants="0-1")
    flights = [rank(0, begin(1), pair), rank(1, begin(1), pair), rank(2, begin(1)), rank(3, begin(1))]
    assert first_divergence(flights) is None


def test_launch_that_a_rank_has_overwritten_is_not_compared() -> None:
    """A rank that made more events has forgotten the launch, and did not miss it."""
    short = rank(0, begin(1), launch(2))
    long = rank(1, FlightEvent(5000, 1, "compilation", 3), begin(5001, cell=4), dropped=4999)
    assert first_divergence([short, long, short, short]) is None


def test_long_cell_is_compared_from_what_all_still_hold() -> None:
    """A loop of more launches than a ring holds, at whose end the ranks differ: the difference is found, and nothing before it."""
    common = [launch(number, launch=number) for number in range(1000, 2001)]
    other = [*common[200:], launch(2001, launch=2001, fingerprint=8, program="jit(g)")]
    ended = [*common, FlightEvent(2001, 9, "end", 3, program="ok")]
    flights = [rank(0, *other, dropped=1199), *(rank(r, *ended, dropped=999) for r in (1, 2, 3))]
    (found,) = find_divergences(flights)
    assert (found.cell, found.launch, found.has_ended) == (3, 2001, True)
    assert [side.ranks for side in found.sides] == [(1, 2, 3), (0,)]


def test_rank_that_has_overwritten_all_launches_of_a_set_is_not_compared() -> None:
    """Of these participants nothing is left in its ring: whether it missed the launch is not known."""
    pair = launch(5, launch=2, participants="0-1")
    forgot = rank(1, *(launch(number, launch=number, participants="1-3") for number in range(9000, 9010)), dropped=8999)
    assert find_divergences([rank(0, begin(1), pair), forgot]) == ()


def test_rank_that_has_not_ended_its_cell_may_yet_come() -> None:
    """In a cell that still runs, a launch that a rank has not reached is marked as such."""
    ahead, behind = rank(0, begin(1), launch(2)), rank(1, begin(1))
    (found,) = find_divergences([ahead, behind, ahead, ahead])
    assert not found.has_ended
    (ended,) = find_divergences([ahead, rank(1, begin(1), FlightEvent(2, 5, "end", 3, program="ok")), ahead, ahead])
    assert ended.has_ended


def test_rank_without_a_recording_is_left_out() -> None:
    """What is not known of a rank is no difference."""
    flights = [rank(r, begin(1), launch(2)) for r in range(3)]
    assert first_divergence([*flights, RankFlight(3, problem="lost")]) is None


# -- the report


def test_report_names_cells_as_the_notebook_does() -> None:
    """A cell has the number beside it in the notebook, if the rank was told it, and cells without launches are listed."""
    flights = [rank(0, begin(1), begin(2, cell=4, program="lockstep"), begin(3, cell=5, program="In [9] off"))]
    report = build_report("c", flights)
    assert [report.name_cell(cell) for cell in (3, 4, 5)] == ["In [5]", "cell 4", "In [9]"]
    assert report.unguarded_cells == (5,)


def test_report_has_the_stragglers_of_all_agreements() -> None:
    """Proposal and agreement are the arrival and the decision."""
    flights = [
        rank(r, begin(1), launch(2 + r, "proposal"), launch(9, "agreement"), launch(10))
        for r in range(4)
    ]  # fmt: skip
    report = build_report("c", flights)
    stragglers = report.stragglers
    assert stragglers is not None
    assert report.lateness is stragglers
    assert (stragglers.ranks[0].rank, stragglers.ranks[0].last_count) == (3, 1)


def test_values_are_json() -> None:
    """The file of --json has every event, with its system time, and the comparison."""
    import json

    report = build_report("c", [rank(0, begin(1), launch(2)), RankFlight(1, problem="lost")])
    values = json.loads(json.dumps(report_values(report)))
    assert values["ranks"][0]["events"][1] == {
        "number": 2, "time_s": 1000.0 + (2000 - 5000) * 1e-9, "kind": "launch", "cell": 3, "line": 7, "launch": 1,
        "program": "jit(step)", "fingerprint": "9", "participants": "0-3",
    }  # fmt: skip
    assert values["ranks"][1] == {"rank": 1, "problem": "lost", "dropped": 0, "torn": False, "events": []}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (launch(1, "proposal"), "waited for agreement on jit(step), line 7 of In [3]"),
        (launch(1, "agreement"), "agreed on jit(step), line 7 of In [3]"),
        (launch(1, "refusal"), "refused jit(step), line 7 of In [3]"),
        (launch(1, line=None), "launched jit(step) in In [3]"),
        (launch(1, "compilation", cell=0, line=None), "compiled jit(step)"),
        (FlightEvent(1, 1, "interrupt", 3), "received an interrupt in In [3]"),
        (begin(1), "began In [3]"),
        (FlightEvent(1, 1, "end", 3, program="error"), "ended In [3] (error)"),
    ],
)
def test_events_are_described(event: FlightEvent, text: str) -> None:
    """Each kind is a few words of plain English."""
    assert describe_event(event, "In [{}]".format) == text

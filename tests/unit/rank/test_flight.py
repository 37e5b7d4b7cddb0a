"""The recorder of one rank, on a real memory-mapped file: threads, forks, kills, a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mhnb.core.flight import CAPACITY, FILE_NBYTES, parse_flight
from mhnb.core.stragglers import ARRIVAL, MAX_ARRIVALS, ArrivalLog
from mhnb.rank.flight import ArrivalRecorder, FlightRecorder, LaunchId, identify_clock, make_header
from mhnb.system.flight import flight_path, read_flight, read_last_event
from tests.support.source import ROOT

STEP = LaunchId((0, 1, 2, 3), 5, 0xABC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of rank 1 of a run directory."""
    return flight_path(tmp_path, 1)


@pytest.fixture
def recorder(path: Path) -> FlightRecorder:
    """A recorder that writes to the file."""
    made = FlightRecorder()
    made.open(path, make_header(1, 2, 500))
    return made


def test_what_is_recorded_is_in_the_file_at_once(recorder: FlightRecorder, path: Path) -> None:
    """Another process reads each event as soon as it was recorded, with all its fields."""
    first = recorder.record("cell", 3, program="In [5] lockstep")
    second = recorder.record("launch", 3, 7, "jit(step)", STEP)
    flight = read_flight(path, 1)
    assert flight.header is not None
    assert (flight.header.rank, flight.header.generation, flight.header.process_count) == (1, 2, 500)
    assert (flight.header.pid, flight.header.clock) == (os.getpid(), identify_clock())
    assert [event.time_ns for event in flight.events] == [first, second]
    event = flight.events[1]
    assert (event.kind, event.cell, event.line, event.launch, event.fingerprint) == ("launch", 3, 7, 5, 0xABC)
    assert (event.program, event.participants) == ("jit(step)", "0-3")


def test_file_is_private_and_complete_from_the_start(recorder: FlightRecorder, path: Path) -> None:
    """No other user reads it, and a disk that fills up later cannot take the rank's memory away."""
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_size == FILE_NBYTES
    assert path.stat().st_blocks * 512 >= FILE_NBYTES


def test_recorder_that_is_not_open_records_nothing() -> None:
    """An engine, or a rank without room for the file, runs all the same, and gets the time."""
    assert FlightRecorder().record("cell", 1) > 0


def test_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    """The caller learns why there is no recorder."""
    (tmp_path / "flight").write_text("a file in its place")
    with pytest.raises(OSError, match=r".+"):
        FlightRecorder().open(flight_path(tmp_path, 1), make_header(1, 2, 4))


@pytest.mark.parametrize("numbers", [(2**32 - 1, 2**32 - 1, 2**32 - 1, 2**64 - 1), (0, None, None, 0)])
def test_largest_and_smallest_numbers_fit(
    recorder: FlightRecorder, path: Path, numbers: tuple[int, int | None, int | None, int]
) -> None:
    """Every number that a rank can have fits into a record."""
    cell, line, launch, fingerprint = numbers
    recorder.record("launch", cell, line, "x" * 500, LaunchId(tuple(range(0, 400, 2)), launch or 0, fingerprint))
    (event,) = read_flight(path, 1).events
    assert (event.cell, event.line, event.launch, event.fingerprint) == numbers
    assert event.participants == ",".join(map(str, range(0, 400, 2)))


def test_threads_record_at_once(recorder: FlightRecorder, path: Path) -> None:
    """Of several threads no event is lost or torn, and each number occurs once."""
    go = threading.Event()

    def work(cell: int) -> None:
        go.wait()
        for _ in range(500):
            recorder.record("launch", cell, program="jit(f)", launch=STEP)

    threads = [threading.Thread(target=work, args=(cell,)) for cell in range(8)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    flight = read_flight(path, 1)
    assert not flight.is_torn
    assert [event.number for event in flight.events] == list(range(1, 4001))
    assert {cell: sum(event.cell == cell for event in flight.events) for cell in range(8)} == dict.fromkeys(
        range(8), 500
    )


def test_ring_is_reused(recorder: FlightRecorder, path: Path) -> None:
    """The file does not grow, and holds the last events."""
    for number in range(CAPACITY + 10):
        recorder.record("launch", number)
    flight = read_flight(path, 1)
    assert (flight.dropped_count, flight.events[0].cell, flight.events[-1].cell) == (10, 10, CAPACITY + 9)
    assert path.stat().st_size == FILE_NBYTES


def test_set_without_room_is_not_compared(recorder: FlightRecorder, path: Path) -> None:
    """Of more sets of ranks than the table holds, the first are kept whole, and no set is cut."""
    wanted = [tuple(range(first, 400, 2)) for first in range(300)]
    for each in wanted:
        recorder.record("launch", 1, launch=LaunchId(each, 1, 7))
    found = [event.participants for event in read_flight(path, 1).events]
    whole = [",".join(map(str, each)) for each in wanted]
    kept = sum(map(bool, found))
    assert 0 < kept < len(wanted)
    assert all(text in ("", full) for text, full in zip(found, whole, strict=True))


def test_newest_cell_is_kept_beside_the_ring(recorder: FlightRecorder, path: Path) -> None:
    """The beginning of a cell with more events than the ring holds is still known."""
    recorder.record("cell", 7, program="In [9] lockstep")
    for _ in range(CAPACITY + 10):
        recorder.record("launch", 7)
    newest = read_flight(path, 1).newest_cell
    assert newest is not None
    assert (newest.cell, newest.program) == (7, "In [9] lockstep")


def test_forked_child_records_nothing(tmp_path: Path) -> None:
    """A child of the rank, such as a worker of a data loader, does not write into its parent's recording."""
    # In a process of its own: this one may have imported JAX, which warns of a fork.
    program = (
        "import os, sys; from pathlib import Path\n"
        "from mhnb.system.flight import flight_path\n"
        "from mhnb.rank.flight import FlightRecorder, make_header\n"
        "recorder = FlightRecorder(); recorder.open(flight_path(Path(sys.argv[1]), 1), make_header(1, 1, 2))\n"
        "recorder.record('cell', 1)\n"
        "if (pid := os.fork()) == 0:\n"
        "    try: recorder.record('launch', 99)\n"
        "    finally: os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "recorder.record('end', 1)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd=ROOT)
    events = read_flight(flight_path(tmp_path, 1), 1).events
    assert [(event.kind, event.cell) for event in events] == [("cell", 1), ("end", 1)]


def test_recording_survives_a_kill(tmp_path: Path) -> None:
    """After SIGKILL at any moment, what was recorded before is there, without a gap."""
    program = (
        "import sys; from pathlib import Path\n"
        "from mhnb.system.flight import flight_path\n"
        "from mhnb.rank.flight import FlightRecorder, make_header\n"
        "recorder = FlightRecorder(); recorder.open(flight_path(Path(sys.argv[1]), 1), make_header(1, 1, 2))\n"
        "number = 0\n"
        "while True:\n"
        "    number += 1; recorder.record('launch', number)\n"
        "    if number == 2000: print('up', flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    flight = read_flight(flight_path(tmp_path, 1), 1)
    numbers = [event.number for event in flight.events]
    assert len(numbers) >= 1999
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert [event.cell for event in flight.events] == numbers
    assert read_last_event(flight_path(tmp_path, 1)) == flight.events[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="a full disk is made with /dev/full's kind of limit, RLIMIT_FSIZE")
def test_disk_without_room_is_an_error(tmp_path: Path) -> None:
    """Without room for the whole file there is an error at the start, not a crash later."""
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from mhnb.system.flight import flight_path\n"
        "from mhnb.rank.flight import FlightRecorder, make_header\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: FlightRecorder().open(flight_path(Path(sys.argv[1]), 1), make_header(1, 1, 2))\n"
        "except OSError as error: print(error.strerror)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "File too large\n"


def test_arrivals_are_taken_once() -> None:
    """The arrivals of a cell are sent with its end, and the next cell begins without any."""
    arrivals = ArrivalRecorder()
    arrivals.add(4, (0, 1), 1, (10, 20))
    arrivals.add(4, (0, 1, 2), 1, (30, 40))
    log = arrivals.take(4)
    assert (log.participants, log.dropped_count) == (["0-1", "0-2"], 0)
    assert arrivals.take(4).packed == b""


def test_agreement_for_the_next_cell_is_kept_for_it() -> None:
    """A thread that outlives its cell agrees for the next one before that begins."""
    arrivals = ArrivalRecorder()
    arrivals.add(4, (0, 1), 1, (10, 20))
    arrivals.add(5, (0, 2), 1, (30, 40))
    assert arrivals.take(4).participants == ["0-1"]
    assert arrivals.take(5).participants == ["0,2"]


def test_threads_note_arrivals_while_a_cell_ends() -> None:
    """Every agreement is in one log, and no log is damaged."""
    arrivals = ArrivalRecorder()
    taken: list[ArrivalLog] = []
    is_over = threading.Event()

    def work(first: int) -> None:
        for number in range(2000):
            arrivals.add(4, (first, first + 1 + number % 50), number, (1, 2))

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    taker = threading.Thread(target=lambda: taken.extend(arrivals.take(4) for _ in iter(is_over.is_set, True)))
    for thread in (*threads, taker):
        thread.start()
    for thread in threads:
        thread.join()
    is_over.set()
    taker.join()
    taken.append(arrivals.take(4))
    assert sum(len(log.packed) // ARRIVAL.size + log.dropped_count for log in taken) == 8000


def test_more_sets_of_ranks_than_a_log_has_are_left_out() -> None:
    """A cell with a set of ranks for every launch does not make a log that the notebook refuses."""
    arrivals = ArrivalRecorder()
    for number in range(MAX_ARRIVALS + 10):
        arrivals.add(4, (0, 1 + number), 1, (1, 2))
    assert len(arrivals.take(4).participants) == MAX_ARRIVALS


def test_only_the_last_arrivals_are_kept() -> None:
    """A long loop does not make a long message."""
    arrivals = ArrivalRecorder()
    for number in range(5000):
        arrivals.add(4, (0, 1), number, (number, number))
    log = arrivals.take(4)
    assert log.dropped_count == 5000 - MAX_ARRIVALS


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has time namespaces")
def test_processes_of_one_machine_share_a_clock() -> None:
    """Two processes with the same clock have the same name for it."""
    program = "from mhnb.rank.flight import identify_clock; print(identify_clock())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == identify_clock()


def test_parse_takes_any_buffer(recorder: FlightRecorder, path: Path) -> None:
    """A recording can be read while the rank writes it."""
    recorder.record("cell", 1)
    assert len(parse_flight(1, path.read_bytes()).events) == 1

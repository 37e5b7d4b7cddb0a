"""Locate, read and copy the files of the flight recorders.

They can be read while a rank writes, and after it was killed. Layout: `core/flight.py`; writer: `rank/flight.py`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from mhnb.core.flight import (
    CAPACITY,
    RECORD,
    RING_START,
    FlightEvent,
    RankFlight,
    decode_event,
    is_whole,
    parse_flight,
)
from mhnb.system.private_files import make_private_folder, open_private


def flight_path(run_dir: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return run_dir / "flight" / f"rank{rank}.events"


def flight_copy_path(run_dir: Path, rank: int) -> Path:
    """Return the path of the notebook's copy of a remote rank's file.

    Its name differs, because the other machine may share this folder.
    """
    return flight_path(run_dir, rank).with_suffix(".copy")


def read_flight(path: Path, rank: int) -> RankFlight:
    """Read the file of a rank on this machine."""
    try:
        return parse_flight(rank, path.read_bytes())
    except FileNotFoundError:
        return RankFlight(rank, problem=f"it has no flight recorder: there is no {path}")
    except OSError as error:
        return RankFlight(rank, problem=f"{path}: {error.strerror}")


def read_last_event(path: Path) -> FlightEvent | None:
    """Return a local rank's newest event, without its participants.

    None if it has no event, or the file cannot be read. The numbers in the ring rise by one from its first place to the
    newest event, so that a search by halves finds it.
    """
    try:
        with path.open("rb") as file:
            first = _read_record(file, 0)[0]
            low, high = 0, CAPACITY  # the newest event is at `low` or between the two
            while first and high - low > 1:
                middle = (low + high) // 2
                if _read_record(file, middle)[0] == first + middle:
                    low = middle
                else:
                    high = middle
            # Other threads may be about to write the records before it, and the rank may have been killed in the newest one.
            for slot in range(low, low - 8, -1):
                record = _read_record(file, slot % CAPACITY)
                if is_whole(record, slot % CAPACITY):
                    return decode_event(record, ())
            return None
    except (OSError, struct.error):
        return None


def _read_record(file: BinaryIO, slot: int) -> tuple[Any, ...]:
    file.seek(RING_START + slot * RECORD.size)
    return RECORD.unpack(file.read(RECORD.size))


def write_flight_copy(run_dir: Path, rank: int, data: bytes) -> None:
    """Keep a copy of the file of a rank on another machine.

    Raises:
        OSError: it cannot be written.
    """
    path = flight_copy_path(run_dir, rank)
    make_private_folder(path.parent)
    unfinished = path.with_suffix(".new")
    with open(unfinished, "wb", opener=open_private) as file:
        file.write(data)
    # At once, because a shell may read it now.
    unfinished.replace(path)

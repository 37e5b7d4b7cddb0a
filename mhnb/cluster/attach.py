"""On-disk record of a detachable cluster, and the lock of its owner.

Another notebook attaches through the record, which exists while the cluster lives. It holds the cluster's key, so only
the user can read it, as with the run directory.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from mhnb.cluster.options import StartOptions
from mhnb.core.addresses import parse_address
from mhnb.core.arguments import closest_match, format_unknown
from mhnb.core.cluster_spec import ClusterSpec
from mhnb.core.messages import PROTOCOL_VERSION
from mhnb.core.ranks import pluralize
from mhnb.core.typed_json import decode_json, encode_json
from mhnb.errors import AlreadyStarted, InvalidRequest, NotDriver, NotStarted
from mhnb.system.private_files import NotPrivate, open_private, read_private, write_private
from mhnb.system.run_dir import Pid, RunRecord, has_live_notebook, list_running_clusters, parse_full_name

_FILE = "attach.json"
_OLD_FILE = "berth.json"
"""The name that earlier versions gave to the record; still read."""
_LOCK = "driver"
_locked_dirs: set[Path] = set()
"""Run directories whose lock this process holds, because opening and closing the lock file would release the lock."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Record of a detachable cluster."""

    run_dir: Path
    key: bytes = field(repr=False)
    url: str
    generation: int
    origin_pid: int
    """Id of the process that started it; part of the names of its directory and its journal."""
    shape: ClusterSpec
    options: StartOptions
    local_supervisors: Mapping[int, int]
    """Process ids of the supervisors on this machine, by number."""
    started_in_s: float = 0.0
    protocol: int = PROTOCOL_VERSION
    """Version of the messages that its ranks accept, because another version of mhnb may have started it."""

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.options.name

    @property
    def full_name(self) -> str:
        """Its name, unique also among clusters of the same name."""
        return parse_full_name(self.run_dir)


class _RecordFile(Struct):
    """Fields of the file in order; unknown ones are ignored for compatibility."""

    key: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    url: Annotated[str, Meta(pattern="^(unix|tcp|sealed):")]
    generation: Annotated[int, Meta(ge=0)]
    origin: Pid
    shape: ClusterSpec
    options: StartOptions
    supervisors: Mapping[int, Pid]
    started_in_s: float
    protocol: Annotated[int, Meta(ge=0)] = 0
    """0 for a version that did not write it."""


class OwnerLock:
    """Lock of the one process that owns a cluster.

    A forked child does not hold it, and the end of the process releases it.

    Raises:
        NotDriver: another process holds it.
    """

    def __init__(self, run_dir: Path, name: str) -> None:
        self._fd = open_private(run_dir / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner_pid = os.pread(self._fd, 32, 0).decode().strip() or "unknown"
            os.close(self._fd)
            raise NotDriver(
                f"cluster {name!r} is attached to another notebook (pid {owner_pid}); "
                "only one notebook can use it at a time\n"
                f"  Fix: shut down the kernel of that notebook, then %mhjax attach {name}",
                name=name,
                driver=owner_pid,
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        self._run_dir = run_dir
        _locked_dirs.add(run_dir)

    @staticmethod
    def is_held(run_dir: Path) -> bool:
        """Whether a process owns that cluster."""
        # Opening and closing the file would release our own lock. A forked child has the directory in its set, but
        # does not hold the lock.
        if run_dir in _locked_dirs and (run_dir / _LOCK).read_text().strip() == str(os.getpid()):
            return True
        try:
            with (run_dir / _LOCK).open("rb+") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            # The directory is being removed at this moment.
            return False
        except OSError:
            return True
        return False

    def release(self) -> None:
        """Release the lock for another process. A second call does nothing."""
        if self._fd >= 0:
            # Otherwise `is_held` would take this process, while it lives, for the owner.
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1
            _locked_dirs.discard(self._run_dir)


def write_cluster_record(record: ClusterRecord) -> None:
    """Write the record of a cluster."""
    body = _RecordFile(
        record.key.hex(),
        record.url,
        record.generation,
        record.origin_pid,
        record.shape,
        record.options,
        record.local_supervisors,
        record.started_in_s,
        record.protocol,
    )
    write_private(record.run_dir / _FILE, encode_json(body))


def list_cluster_records(environment: Mapping[str, str]) -> list[ClusterRecord]:
    """Return this user's detachable clusters whose processes live, owned or not."""
    return read_cluster_records(environment)[0]


def read_cluster_records(environment: Mapping[str, str]) -> tuple[list[ClusterRecord], list[str]]:
    """Return this user's live detachable clusters, and why records were left out."""
    records, faults = list_running_clusters(environment)
    read = [_read(Path(record.run_dir)) for record in records if record.is_detachable]
    return [each for each, _ in read if each is not None], [*faults, *(fault for _, fault in read if fault)]


def has_owner(record: RunRecord) -> bool:
    """Return whether a notebook owns a running cluster."""
    return OwnerLock.is_held(Path(record.run_dir)) if record.is_detachable else has_live_notebook(record)


def describe_other_clusters(environment: Mapping[str, str]) -> list[str]:
    """Describe clusters here that this process does not own, and unreadable records."""
    records, faults = list_running_clusters(environment)[0], read_cluster_records(environment)[1]
    others = [r for r in records if not (has_owner(r) and r.owner_pid == os.getpid())]
    return [*map(describe_cluster, others), *faults]


def describe_cluster(record: RunRecord) -> str:
    """Describe a cluster that `list_running_clusters` found: name, ranks, location, and owner."""
    if has_owner(record):
        how = f"attached to the notebook with pid {record.owner_pid}"
    elif record.is_detachable:
        how = f"detached: %mhjax attach {record.name}"
    else:
        how = "its notebook has exited, and it is shutting down"
    # An older mhnb recorded no location.
    where = f"on {record.location}  " if record.location else ""
    return f"{record.name}  {pluralize(len(record.rank_pids), 'rank')}  {where}{how}"


def find_detached(name: str, shape: ClusterSpec, records: Sequence[ClusterRecord]) -> ClusterRecord | None:
    """Return the detached cluster of that name and spec, or None.

    Raises:
        AlreadyStarted: a detached cluster of that name has another spec, or belongs to another version.
    """
    detached = _without_owner(name, records)
    compatible = [each for each in detached if _has_same_protocol(each)]
    matching = next((each for each in compatible if each.shape == shape), None)
    if matching is None and compatible:
        raise AlreadyStarted(
            f"detached cluster {name!r} is running with {compatible[0].shape.describe()}; "
            f"you requested {shape.describe()}\n"
            f"  Fix: %mhjax attach {name}\n"
            f"  Or: mhnb stop {compatible[0].full_name}, then run this line again\n"
            "  Or: add --name other to run both",
            name=name,
        )
    if matching is None and detached:
        raise AlreadyStarted(_describe_version_mismatch(detached[0]), name=name)
    return matching


def describe_detached(name: str, records: Sequence[ClusterRecord]) -> list[str]:
    """Describe same-named detached clusters, and how to use or end them."""
    return [
        f"detached cluster {each.full_name} is running beside this one. "
        + (f"To use it: %mhjax stop, then %mhjax attach {each.full_name}. " if _has_same_protocol(each) else "")
        + f"To end it: mhnb stop {each.full_name}"
        for each in _without_owner(name, records)
    ]


def _without_owner(name: str, records: Sequence[ClusterRecord]) -> list[ClusterRecord]:
    return [each for each in records if each.name == name and not OwnerLock.is_held(each.run_dir)]


def select_cluster(name: str | None, records: Sequence[ClusterRecord], own_names: Collection[str]) -> ClusterRecord:
    """Select the detachable cluster that is meant.

    Args:
        name: as the user gave it: a cluster's name, or its full name; None for the only one.
        records: all detachable clusters that live.
        own_names: names of the clusters that this process owns.

    Raises:
        NotStarted: no cluster has that name, or several have, or it belongs to another version of mhnb.
        AlreadyStarted: this notebook has one of that name.
    """
    matching = [each for each in records if name in (None, each.name, each.full_name)]
    own_name = matching[0].name if len(matching) == 1 else name
    if own_name in own_names and len(matching) < 2:
        raise AlreadyStarted(
            f"this notebook is already attached to cluster {own_name!r}\n"
            "  Fix: to send cells to it, run the line that started it again",
            name=own_name,
        )
    if len(matching) == 1:
        if not _has_same_protocol(matching[0]):
            raise NotStarted(_describe_version_mismatch(matching[0]))
        return matching[0]
    if not records:
        unknown = f"unknown cluster {name!r}: " if name else ""
        raise NotStarted(
            f"{unknown}no cluster that can be attached is running on this machine. "
            "Clusters started with --keep continue without their notebook\n  Fix: %mhjax start --keep"
        )
    if len(matching) > 1:
        named = ", ".join(each.full_name for each in matching)
        which = f"clusters are named {name!r}" if name else "clusters can be attached"
        raise NotStarted(f"{len(matching)} {which}: {named}\n  Fix: %mhjax attach {matching[0].full_name}")
    names = [each.name for each in records]
    closest = names.index(closest_match(str(name), names) or names[0])
    raise NotStarted(
        f"{format_unknown('cluster', str(name), names)}\n  Fix: %mhjax attach {records[closest].full_name}"
    )


def _read(run_dir: Path) -> tuple[ClusterRecord | None, str]:
    """Read a detachable cluster's record, or return why it cannot be read."""
    path = run_dir / _FILE
    if not path.exists() and (run_dir / _OLD_FILE).exists():
        path = run_dir / _OLD_FILE
    try:
        return _parse(run_dir, decode_json(read_private(path), _RecordFile)), ""
    except FileNotFoundError:
        # Not written yet, or the cluster is ending at this moment.
        return None, ""
    except NotPrivate as error:
        return None, f"left out: {error}"
    except (ValueError, OSError, InvalidRequest) as error:
        # Broken, or of a version that writes it differently: `mhnb list` shows the cluster, and `mhnb stop` ends it,
        # by another file.
        name = run_dir.name.rpartition(".")[0]
        return None, (
            f"left out: {path} cannot be read ({type(error).__name__}: {error}); another version of mhnb may have written it\n"
            f"  Fix: attach with that version of mhnb\n  Or: mhnb stop {name}"
        )


def _parse(run_dir: Path, body: _RecordFile) -> ClusterRecord:
    return ClusterRecord(
        run_dir,
        bytes.fromhex(body.key),
        str(parse_address(body.url, "its url")),
        body.generation,
        body.origin,
        body.shape,
        body.options,
        body.supervisors,
        body.started_in_s,
        body.protocol,
    )


def _has_same_protocol(record: ClusterRecord) -> bool:
    return record.protocol == PROTOCOL_VERSION


def _describe_version_mismatch(record: ClusterRecord) -> str:
    return (
        f"detached cluster {record.name!r} was started by another version of mhnb with a different protocol "
        f"({record.protocol}; this version uses {PROTOCOL_VERSION})\n"
        f"  Fix: attach with that version of mhnb\n  Or: mhnb stop {record.full_name}"
    )

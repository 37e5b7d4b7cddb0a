"""Prepare a cluster's hosts: copy the user's folder there, and run pip.

A folder of the notebook's machine is copied over the transport, once per host, to hosts that have another disk. Pip runs
once in each environment that the ranks run in, not once per rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhnb.cluster.options import check_folder
from mhnb.cluster.requests import await_reply, interrupting_requests, request_all
from mhnb.core.file_sync import (
    MAX_SYNC_NBYTES,
    Excludes,
    FileChunk,
    FileFacts,
    chunk_files,
    parse_excludes,
    remote_path,
)
from mhnb.errors import ClusterError, InvalidRequest, RanksLost
from mhnb.system.processes import digest_file
from mhnb.system.run_dir import find_home

if TYPE_CHECKING:
    from concurrent.futures import Future

    from mhnb.cluster.cluster import Cluster
    from mhnb.core.messages import RankReply
    from mhnb.types import RankInfo


_IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class HostSync:
    """What was copied to one host."""

    host: str
    """Its label, and the machine's own name."""
    folder: str
    """The folder on that host."""
    paths: tuple[str, ...]
    """Files that were missing or different."""
    nbytes: int
    imported: tuple[str, ...]
    """Modules that ranks had imported from replaced files: they stay as they were."""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """Result of a sync."""

    folder: str
    """The folder on this machine."""
    file_count: int
    hosts: tuple[HostSync, ...]


def one_rank_per_host(cluster: Cluster) -> list[RankInfo]:
    """Select one rank per host; simulated hosts count as one."""
    chosen: dict[str, RankInfo] = {}
    for rank in cluster.ranks:
        chosen.setdefault("" if cluster.shape.is_local else rank.host, rank)
    return list(chosen.values())


def sync(cluster: Cluster, folder: str = ".") -> SyncReport:
    """Copy missing and different files of a folder to each host.

    Other files there stay. The target has the same relative path: here from the notebook's folder, on the hosts from
    the ranks' working directory. A folder outside the notebook's folder is copied under its own name.

    Raises:
        InvalidRequest: the folder does not exist, or holds more than code would.
        ClusterError: a host could not accept it; the message names host and file.
    """
    source = check_folder(folder)
    files = _scan(source)
    target_path = remote_path(str(source), str(Path(cluster.cwd).resolve()))
    chosen_ranks = one_rank_per_host(cluster)
    arguments = {"place": target_path, "files": {p: [f.nbytes, f.mode, f.digest] for p, f in files.items()}}
    comparisons = request_all(cluster, [doer.rank for doer in chosen_ranks], "list_missing_files", arguments)
    comparison_by_rank = [(doer, comparisons[doer.rank].value) for doer in chosen_ranks]
    for doer, comparison in comparison_by_rank:
        if comparison["strays_home"] and find_home() != source and comparison["wanted"]:
            raise InvalidRequest(
                f"sync {folder}: {_describe_host(doer)} does not have the notebook's folder, so its ranks run in {comparison['folder']}, "
                f"where these {len(files)} files do not belong\n  Fix: start with --sync {folder}, which creates the folder there first"
            )
    for doer, comparison in comparison_by_rank:
        _upload(cluster, doer, comparison, source, files)
    return SyncReport(
        str(source),
        len(files),
        tuple(_finish_host(cluster, doer, comparison, files) for doer, comparison in comparison_by_rank),
    )


def _describe_host(rank: RankInfo) -> str:
    return f"{rank.host} ({rank.hostname})"


# -- files on this machine


def _scan(source: Path) -> dict[str, FileFacts]:
    ignore = source / ".gitignore"
    excludes = parse_excludes(ignore.read_text(errors="replace") if ignore.is_file() else "")
    paths = sorted(_walk(source, excludes))
    sizes = {path: (source / path).stat().st_size for path in paths}
    if (total := sum(sizes.values())) > MAX_SYNC_NBYTES:
        largest = ", ".join(sorted(sizes, key=sizes.__getitem__)[:-4:-1])
        raise InvalidRequest(
            f"sync {source}: {len(paths)} files with {total >> 20} MiB in total exceed the limit of {MAX_SYNC_NBYTES >> 20} MiB; "
            f"the largest are {largest}\n  Fix: exclude data with a .gitignore in that folder\n  Or: sync a folder that contains only code"
        )
    return {path: _read_facts(source, path, sizes[path]) for path in paths}


def _walk(source: Path, excludes: Excludes) -> Iterator[str]:
    """Yield relative file paths; skip links to folders, which may form cycles."""
    for where, folders, names in os.walk(source):
        base = Path(where).relative_to(source)
        folders[:] = [f for f in folders if not excludes.is_excluded((base / f).as_posix(), is_folder=True)]
        paths = [(base / name).as_posix() for name in names]
        yield from (p for p in paths if not excludes.is_excluded(p, is_folder=False) and (source / p).is_file())


def _read_facts(source: Path, path: str, nbytes: int) -> FileFacts:
    try:
        return FileFacts(nbytes, (source / path).stat().st_mode & 0o777, digest_file(source / path))
    except OSError as error:
        raise InvalidRequest(
            f"sync {source}: {path} cannot be read ({error.strerror})\n  Fix: exclude it with a .gitignore in that folder"
        ) from error


# -- transfer


def _upload(
    cluster: Cluster, rank_info: RankInfo, comparison: dict[str, Any], source: Path, files: dict[str, FileFacts]
) -> None:
    pending: list[Future[RankReply]] = []
    try:
        with interrupting_requests(cluster):
            for pieces in chunk_files(files, comparison["wanted"]):
                arguments = {
                    "folder": comparison["folder"],
                    "pieces": [[p.path, files[p.path].mode, p.start, p.is_last] for p in pieces],
                }
                pending.append(cluster.ask(rank_info.rank, "write_files", arguments, _read(source, pieces)))
                if len(pending) == _IN_FLIGHT:
                    await_reply(rank_info.rank, "write_files", pending.pop(0))
            for future in pending:
                await_reply(rank_info.rank, "write_files", future)
    except RanksLost:
        raise
    except ClusterError as error:
        why = str(error).partition("'write_files': ")[2] or str(error)
        raise ClusterError(
            f"sync failed on {_describe_host(rank_info)}: {why}\n  Fix: correct this, then run %mhjax sync again"
        ) from error


def _read(source: Path, pieces: Iterable[FileChunk]) -> tuple[bytes, ...]:
    read = []
    for piece in pieces:
        with (source / piece.path).open("rb") as file:
            file.seek(piece.start)
            read.append(file.read(piece.stop - piece.start))
    return tuple(read)


def _finish_host(
    cluster: Cluster, rank_info: RankInfo, comparison: dict[str, Any], files: dict[str, FileFacts]
) -> HostSync:
    wanted: Sequence[str] = comparison["wanted"]
    host_ranks = [rank.rank for rank in cluster.ranks if cluster.shape.is_local or rank.host == rank_info.host]
    arguments = {"folder": comparison["folder"], "paths": wanted}
    imported = {
        name for answer in request_all(cluster, host_ranks, "finish_files", arguments).values() for name in answer.value
    }
    nbytes = sum(files[path].nbytes for path in wanted)
    return HostSync(_describe_host(rank_info), comparison["folder"], tuple(wanted), nbytes, tuple(sorted(imported)))


# -- run pip once in each environment


@dataclass(frozen=True, slots=True)
class PipRun:
    """Result of pip in one environment."""

    host: str
    """The host where it ran: its label, and the machine's own name."""
    python: str
    """The interpreter of that environment."""
    exit_code: int
    """Exit code; 0 for success."""
    output: str


def run_pip(cluster: Cluster, arguments: Sequence[str]) -> tuple[PipRun, ...]:
    """Run pip on one rank of each host, and wait for all.

    Hosts run at once. Those that may share an environment run one after another, so that two pips never write to one
    environment: the second finds that there is nothing to do.

    Raises:
        ClusterError: a rank is lost, or has no pip.
    """
    chosen_ranks = one_rank_per_host(cluster)
    environments = request_all(cluster, [doer.rank for doer in chosen_ranks], "describe_environment", {})
    rank_groups: dict[tuple[tuple[str, object], ...], list[RankInfo]] = {}
    for doer in chosen_ranks:
        rank_groups.setdefault(tuple(sorted(environments[doer.rank].value.items())), []).append(doer)

    def run_sequentially(group: list[RankInfo]) -> list[PipRun]:
        return [_run(cluster, doer, environments[doer.rank].value["python"], arguments) for doer in group]

    # The threads of the pool do not get Ctrl-C, and the pool ends with them.
    with ThreadPoolExecutor(len(rank_groups)) as pool, interrupting_requests(cluster):
        runs = [run for group in pool.map(run_sequentially, rank_groups.values()) for run in group]
    return tuple(runs)


def _run(cluster: Cluster, rank_info: RankInfo, python: str, arguments: Sequence[str]) -> PipRun:
    reply = request_all(cluster, [rank_info.rank], "pip", {"words": list(arguments)})[rank_info.rank].value
    return PipRun(_describe_host(rank_info), python, reply["code"], reply["said"])

"""The directory of one running cluster: logs, and an IPython profile made from the packaged one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from platformdirs import user_state_path

from mhnb.errors import InvalidRequest

__all__ = ["make_run_dir", "prune_run_dirs", "read_owners", "write_owner"]

_KEPT_RUNS = 20


def _home(environment: Mapping[str, str]) -> Path:
    chosen = environment.get("MHNB_HOME")
    return Path(chosen) if chosen else user_state_path("mhnb")


def make_run_dir(name: str, generation: int, *, environment: Mapping[str, str], profile: Path) -> Path:
    """Make the directory, readable by its owner alone.

    Args:
        name: the cluster's name, a plain word.
        generation: number of the start.
        environment: MHNB_HOME in it chooses another place.
        profile: the IPython profile directory to start from.

    Raises:
        InvalidRequest: a name that is no plain word.
    """
    if not name.replace("-", "").replace("_", "").isalnum():
        raise InvalidRequest(f"--name {name!r}: use letters, digits, - and _ only")
    run_dir = _home(environment) / f"{name}.{os.getpid()}.{generation}"
    if run_dir.exists():
        shutil.rmtree(run_dir)
    (run_dir / "log").mkdir(parents=True, mode=0o700)
    shutil.copytree(profile, run_dir / "profile")
    run_dir.chmod(0o700)
    return run_dir


def prune_run_dirs(environment: Mapping[str, str]) -> None:
    """Remove the oldest directories of notebooks that are gone; the last ones stay, for their logs."""
    home = _home(environment)
    if not home.is_dir():
        return
    ended = [path for path in home.iterdir() if path.is_dir() and not _owner_lives(path)]
    for path in sorted(ended, key=lambda p: p.stat().st_mtime)[:-_KEPT_RUNS]:
        shutil.rmtree(path)


def _owner_lives(path: Path) -> bool:
    parts = path.name.split(".")
    kept = path / "cluster.json"
    if kept.exists() and _is_supervisor(json.loads(kept.read_text())["supervisor"]):
        return True
    return len(parts) == 3 and parts[1].isdecimal() and psutil.pid_exists(int(parts[1]))


def write_owner(run_dir: Path, name: str, supervisor_pid: int, rank_pids: Sequence[int | None], *, keep: bool) -> None:
    """Note who runs here, so that a shell can list and stop it."""
    record = {"name": name, "owner": os.getpid(), "supervisor": supervisor_pid, "ranks": list(rank_pids), "keep": keep}
    (run_dir / "cluster.json").write_text(json.dumps(record))


def read_owners(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """List the clusters of this user on this machine whose supervisor lives."""
    records = [json.loads(path.read_text()) for path in sorted(_home(environment).glob("*/cluster.json"))]
    return [record for record in records if _is_supervisor(record["supervisor"])]


def _is_supervisor(pid: int) -> bool:
    try:
        return "mhnb.rank.host" in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False

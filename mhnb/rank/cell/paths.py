"""Paths of a rank's output: one log for people, and the files that its C-level output goes to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mhnb.core.life.roster import drop_flag_help, drop_stack_frames
from mhnb.rank.cell.mark import read_offsets
from mhnb.rank.cell.native import split_library_noise
from mhnb.system.private import open_private

__all__ = ["RankPaths", "hub_log", "read_hub_lines"]

_TAIL_NBYTES = 64 * 1024


def hub_log(run_dir: Path) -> Path:
    """Return the path of the hub's log."""
    return run_dir / "log" / "hub.log"


def read_hub_lines(run_dir: Path, count: int) -> list[str]:
    """Return the last lines of the hub's log."""
    return _tail(hub_log(run_dir), 0)[-count:]


@dataclass(frozen=True, slots=True)
class RankPaths:
    """The files of one rank in the cluster's run directory."""

    run_dir: Path
    rank: int

    @property
    def log(self) -> Path:
        """All output of the rank, for people."""
        return self.run_dir / "log" / f"rank{self.rank}.log"

    @property
    def native(self) -> tuple[Path, Path]:
        """The files that the rank's file descriptors 1 and 2 write to: output of C code and subprocesses, and of an abort."""
        log_dir = self.run_dir / "log"
        return log_dir / f"rank{self.rank}.native.out", log_dir / f"rank{self.rank}.native.err"

    @property
    def offsets(self) -> Path:
        """The record of where its latest cell began in the other files."""
        return self.run_dir / "log" / f"rank{self.rank}.begun"

    def read_last_lines(self, count: int) -> list[str]:
        """Return the last lines of a rank that died, and append its native output to the log, where no other process will.

        Only output since its latest cell began counts: earlier output did not lead to its end.
        """
        offsets = read_offsets(self.offsets)
        out, err = self.native
        native = [*_tail(out, offsets.out), *_tail(err, offsets.err)]
        logged = _tail(self.log, offsets.log)
        unlogged = [line for line in native if line not in logged]
        if unlogged:
            with open(self.log, "a", encoding="utf-8", errors="replace", opener=open_private) as log:
                log.write("\n--- native output at the end ---\n" + "\n".join(unlogged) + "\n")
        # Greetings of libraries are not last output.
        return drop_flag_help(drop_stack_frames(split_library_noise("\n".join([*logged, *unlogged]))[0].splitlines()))[
            -count:
        ]


def _tail(path: Path, since_nbytes: int) -> list[str]:
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(since_nbytes, os.fstat(file.fileno()).st_size - _TAIL_NBYTES))
        text = file.read().decode("utf-8", "replace")
    return [line for line in text.splitlines() if line.strip()]

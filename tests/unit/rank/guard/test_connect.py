"""Connect a rank to the agreement on launches."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from mhnb.core.messages import HostSpec
from mhnb.errors import LaunchError
from mhnb.rank.guard.local_agreement import NO_AGREEMENT
from mhnb.rank.guard.remote_agreement import connect_agreement, open_interrupt_flag
from mhnb.rank.guard.shared_board import create_board, create_interrupt_flag

WITHOUT_BOARD = HostSpec(
    "tcp:127.0.0.1:1", "00", 1, 1, 2, [1], 2, "127.0.0.1:2", {}, {}, ".", ".", has_shared_board=False
)


def test_rank_without_a_board_does_not_start() -> None:
    """A rank without a board does not start, because a guard that silently agrees on nothing would pass wrong numbers."""
    with pytest.raises(LaunchError, match="internal error: rank 1 of 2 has no launch-agreement service"):
        connect_agreement(WITHOUT_BOARD, 1)


def test_single_rank_needs_no_board() -> None:
    """A single rank has no other rank to agree with."""
    single = replace(WITHOUT_BOARD, process_count=1, ranks=[0])
    assert connect_agreement(single, 0) is NO_AGREEMENT
    assert open_interrupt_flag(single) is None


def test_rank_is_interrupted_by_its_own_supervisor(tmp_path: Path) -> None:
    """A rank of another host does not see the board's interrupt flag, but that of its own host."""
    create_board(tmp_path, 2)
    create_interrupt_flag(tmp_path, 1)
    at_board = replace(WITHOUT_BOARD, run_dir=str(tmp_path), has_shared_board=True)
    elsewhere = replace(WITHOUT_BOARD, run_dir=str(tmp_path), board_url="tcp:127.0.0.1:1", supervisor=1)
    flags = [open_interrupt_flag(spec) for spec in (at_board, elsewhere)]
    for number, flag in enumerate(flags, 4):
        assert flag is not None
        assert flag.interrupted_seq == -1
        flag.request_interrupt(number)
        flag.request_report()
        assert (flag.report_count, flag.close_count) == (1, 0)
    assert [flag.interrupted_seq for flag in flags if flag is not None] == [4, 5]
    for flag in flags:
        assert flag is not None
        flag.close()

"""The files of ipyparallel's controller."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from stat import S_IMODE

from IPython.core.profiledir import ProfileDir

from mhnb.rank.controller import define_controller


def test_connection_file_is_never_seen_in_part(tmp_path: Path) -> None:
    """A file that is open while the next is written keeps what it had: the next takes its place once it is whole."""
    controller = define_controller(ExitStack())()
    controller.profile_dir = ProfileDir.create_profile_dir(str(tmp_path / "profile"))
    path = Path(controller.profile_dir.security_dir, "ipcontroller-engine.json")
    controller.save_connection_dict(path.name, {"key": "first"})
    with path.open() as seen:
        controller.save_connection_dict(path.name, {"key": "second"})
        assert json.load(seen) == {"key": "first"}
    assert json.loads(path.read_text()) == {"key": "second"}
    assert S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]

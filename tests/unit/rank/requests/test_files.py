"""Files that a rank's host receives."""

from __future__ import annotations

from pathlib import Path

import pytest

from mhnb.rank.requests.files import finish_files, list_missing_files, write_files


def test_file_with_a_lost_piece_does_not_replace_the_old_one(tmp_path: Path) -> None:
    """If the disk is full for one piece and not for the next, the old file stays and no half of the new one remains."""
    (tmp_path / "a").write_text("old")
    with pytest.raises(OSError, match="No such file"):
        write_files(str(tmp_path), [["a", 0o644, 4, True]], [b"tail"])
    write_files(str(tmp_path), [["a", 0o644, 0, False]], [b"head"])
    with pytest.raises(OSError, match="the part before byte 9 is missing"):
        write_files(str(tmp_path), [["a", 0o644, 9, True]], [b"tail"])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_user_without_home_receives_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that the machine does not know, as in a container, has no home folder into which files could stray."""

    def find_none(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", find_none)
    answer = list_missing_files("", {"a": [0, 0o644, ""]})
    assert answer == {"folder": str(tmp_path), "wanted": ["a"], "strays_home": False}


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x"])
def test_path_outside_its_folder_is_refused(tmp_path: Path, path: str) -> None:
    """A path that leaves its folder is refused."""
    with pytest.raises(ValueError, match="is outside the target folder"):
        write_files(str(tmp_path), [[path, 0o644, 0, True]], [b""])
    with pytest.raises(ValueError, match="is outside the target folder"):
        list_missing_files(path, {})


def test_unchanged_file_is_not_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is requested if its content or mode differs, if it is missing, or if a folder has its name."""
    monkeypatch.chdir(tmp_path)
    write_files(str(tmp_path / "lib"), [["same", 0o755, 0, True], ["sub/other", 0o644, 0, True]], [b"", b"text"])
    digest = "cae66941d9efbd404e4d88758ea67670"
    files = {name: [0, 0o755, digest] for name in ("same", "sub", "absent")} | {"sub/other": [4, 0o644, digest]}
    answer = list_missing_files("lib", files)
    assert answer == {"folder": str(tmp_path / "lib"), "wanted": ["sub", "absent", "sub/other"], "strays_home": False}
    assert finish_files(str(Path(__file__).parent), [Path(__file__).name]) == [__name__]

"""The generated pages of the reference have every command, flag, setting, public name and error."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import pytest

import mhnb
from mhnb import errors, teach
from mhnb.cli import main
from mhnb.launchers.profiles import KINDS
from mhnb.magics import commands
from mhnb.magics.settings import Mhjax

reference: Any = importlib.import_module("mhnb_reference")


def _shown_flags(parser: argparse.ArgumentParser) -> list[str]:
    """Return the longest spelling of each flag that is not hidden."""
    return [
        max(action.option_strings, key=len)
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS and "--help" not in action.option_strings
    ]


def _section(text: str, heading: str) -> str:
    """Return the text below a heading, up to the next one."""
    _, found, rest = text.partition(f"{heading}\n")
    assert found, heading
    return rest.partition("\n#")[0]


@pytest.mark.parametrize("name", [name for name in commands.list_names() if name != "help"])
def test_every_command_has_its_flags(name: str) -> None:
    """Each `%mhjax` command has a section of its own with all of its flags."""
    parser = commands.command_parser(name)
    assert parser is not None
    section = _section(reference.write_magics(), f"### `%mhjax {name}`")
    assert [flag for flag in _shown_flags(parser) if f"`{flag}" not in section] == []


def test_cells_have_their_flags() -> None:
    """The section on cells has the flags of `%%mhjax`, and none that is hidden."""
    section = _section(reference.write_magics(), "## Cells: `%%mhjax`")
    assert [flag for flag in ("--ranks", "--guard", "--timeout", "--view") if f"`{flag}" not in section] == []
    assert "--auto" not in section


def test_every_shell_command_has_its_flags() -> None:
    """Each `mhnb` command has a section of its own with all of its flags."""
    text, parsers = reference.write_cli(), main.find_commands(main.build_parser())
    for name in (name for name, command in main.COMMANDS.items() if not command.is_hidden):
        section = _section(text, f"### `mhnb {name}`")
        assert [flag for flag in _shown_flags(parsers[name]) if f"`{flag}" not in section] == []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_setting_is_there(kind: str) -> None:
    """Each kind of profile has a table with all of its settings."""
    cls = KINDS[kind]
    section = _section(reference.write_profiles(), f"## {kind}: `c.{cls.__name__}`")
    assert [name for name in cls.class_traits(config=True) if f"| `{name}` |" not in section] == []


def test_every_default_is_there() -> None:
    """The configuration page has each setting of `c.Mhjax`, with its values and its default."""
    rows = {row.split("`")[1]: row for row in reference.write_configuration().splitlines() if row.startswith("| `")}
    assert rows.keys() == Mhjax.class_traits(config=True).keys()
    assert "`'fold'` or `'tabs'` or `'grid'`" in rows["view"]
    assert "| — |" in rows["timeout_s"]


def test_every_public_name_is_there() -> None:
    """The Python page has mhnb's public names, every error and the functions of mhnb.teach."""
    text = reference.write_python()
    known = {f"mhnb.errors.{name}" for name in errors.__all__} | {f"mhnb.teach.{name}" for name in teach.__all__}
    known |= {f"mhnb.{name}" for name in mhnb.__all__ if name not in errors.__all__ and "__" not in name}
    known -= {"mhnb.load_ipython_extension", "mhnb.unload_ipython_extension"}
    assert sorted(name for name in known if f":: {name}\n" not in text) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"flags": ("-n",), "metavar": "N", "help": "ranks"}, "| `-n N` | ranks |"),
        ({"flags": ("--view",), "choices": ("a", "b")}, "| `--view {a,b}` | — |"),
        ({"flags": ("--off",), "action": "store_true", "help": "a|b"}, r"| `--off` | a\|b |"),
        ({"flags": ("--n",), "default": 4, "help": "ranks (default: %(default)s)"}, "| `--n N` | ranks (default: 4) |"),
        (
            {"flags": ("names",), "nargs": "+", "help": "of `x_y` and x_y"},
            r"| `names [names ...]` | of `x_y` and x\_y |",
        ),
        ({"flags": ("--a-b", "--a_b"), "metavar": "X", "help": "x"}, "| `--a-b X` | x |"),
    ],
)
def test_a_row_is_an_argument(arguments: dict[str, Any], expected: str) -> None:
    """An argument is one row of a table: how it is typed, and its help as text that Markdown does not change."""
    parser = argparse.ArgumentParser()
    parser.add_argument(*arguments.pop("flags"), **arguments)
    assert expected in reference.write_flags(parser).splitlines()


def test_hidden_flags_are_left_out() -> None:
    """A hidden flag has no row, and a parser without flags no table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--secret", help=argparse.SUPPRESS)
    assert reference.write_flags(parser) == ""

"""The table of commands: one source for the help, the manual, and each command's own help. No shell is needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from mhnb.cluster.flags import GROUPS as GROUP_TITLES
from mhnb.cluster.options import resolve_start
from mhnb.magics import files
from mhnb.magics.commands import (
    COMMANDS,
    GROUPS,
    build_help,
    cell_parser,
    command_parser,
    find_command,
    find_help,
    format_manual,
    list_names,
    run_command,
)
from mhnb.magics.completion import complete_line
from mhnb.magics.session import Session
from mhnb.system import help_topics
from mhnb.system.help_topics import MESSAGES_PAGE
from mhnb.view.print_text import print_text


def test_each_summary_is_one_sentence() -> None:
    """A command is described by one sentence that begins with a capital letter and ends with a full stop."""
    for command in COMMANDS.values():
        assert re.fullmatch(r"[A-Z][^.]*\.", command.summary), command


def test_help_has_each_command_once_in_its_group() -> None:
    """The help lists every command with its sentence below the title of its group."""
    text = print_text(build_help())
    for group, following in zip(GROUPS, [*GROUPS[1:], None], strict=True):
        section = text.partition(f"\n{group}\n")[2].partition(f"\n{following}\n" if following else "\0")[0]
        for command in COMMANDS.values():
            is_listed = command.group == group and not command.is_hidden
            assert (command.summary in section) == is_listed, (group, command.name)


@pytest.mark.parametrize(
    ("old", "name"),
    [
        ("panel", "show"),
        ("sharding", "layout"),
        ("continue", "accept"),
        ("reap", "cleanup"),
        ("cleanup", "cleanup"),
        ("version", "version"),
        ("stragglers", "stragglers"),
    ],
)
def test_older_spelling_works_and_stands_nowhere(old: str, name: str) -> None:
    """An older name, or a command that another one contains, is run; neither the help nor completion has it."""
    command = find_command(old)
    assert command is not None
    assert command.name == name
    assert command_parser(old) is not None
    assert not re.search(rf"(?m)^  (%mhjax )?{old}\b", f"{print_text(build_help())}\n{format_manual()}")
    assert old not in list_names()


@pytest.mark.parametrize("name", [name for name in list_names() if name != "help"])
def test_help_of_a_command_has_its_sentence(name: str) -> None:
    """The parser of each command, also by an alias, describes it with the sentence of the table."""
    command, parser = find_command(name), command_parser(name)
    assert command is not None
    assert parser is not None
    assert command.summary.split()[0] in parser.format_help()
    assert parser.description == command.summary


def test_manual_has_each_usage() -> None:
    """The manual lists each command with its arguments and its sentence, and the flags of a cell."""
    manual = format_manual()
    for command in (command for command in COMMANDS.values() if not command.is_hidden):
        assert f"  %mhjax {command.name} {command.usage}".rstrip() in manual
        assert command.summary in manual
    assert "--collectives" in manual
    assert cell_parser().prog == "%mhjax"


def test_each_argument_has_a_description() -> None:
    """No flag and no argument of any parser lacks a help text."""
    parsers = [cell_parser(), *(command_parser(name) for name in COMMANDS)]
    actions = [(parser.prog, action) for parser in parsers if parser is not None for action in parser._actions]
    assert [(prog, action.dest) for prog, action in actions if not action.help] == []


def test_names_are_unique() -> None:
    """No alias is also the name of a command."""
    assert len(set(list_names())) == len(list_names())


@pytest.mark.parametrize("line", ["", "help", "--help", "-h"])
def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """`%mhjax` without a command is not an error, because new users do not know the commands."""
    run_command(Session(shell=None), line)
    assert capsys.readouterr().out == f"{print_text(build_help())}\n"


def test_help_of_a_command_equals_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """`help start` prints what `start --help` prints."""
    run_command(Session(shell=None), "help start")
    first = capsys.readouterr().out
    run_command(Session(shell=None), "start --help")
    assert capsys.readouterr().out == first
    assert first.startswith("%mhjax start [-h]")


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("strat -n 2", "unknown command 'strat'. Did you mean 'start'?\n  Help: %mhjax help"),
        ("--rnks 0", "%mhjax --rnks: flags belong to %%mhjax, or follow a command\n  Help: %mhjax help"),
        ("help strat", "unknown help topic 'strat'. Did you mean 'start'?"),
        ("status extra", "%mhjax status: unrecognized arguments: extra\n  Help: %mhjax help status"),
    ],
)
def test_unknown_words_are_refused(line: str, message: str) -> None:
    """An unknown command, topic or argument is a usage error with the closest one and the help to read."""
    with pytest.raises(UsageError) as error:
        run_command(Session(shell=None), line)
    assert str(error.value) == message


def test_start_help_has_groups() -> None:
    """The flags of a start are grouped, and the spellings with underscores are hidden."""
    parser = command_parser("start")
    assert parser is not None
    text = parser.format_help()
    places = [text.index(f"\n{title}:\n") for title in GROUP_TITLES]
    assert places == sorted(places)
    assert "--coordinator-address" in text
    assert "--coordinator_address" not in text
    assert "--process" not in text
    assert "--num" not in text
    assert "mhnb sets num_processes and process_id" in " ".join(text.split())
    assert parser.parse_args(["--coordinator_address", "a:1"]).coordinator_address == "a:1"


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("--persist", "--keep"),
        ("--spare", "--standby"),
        ("--ssh-port 7", "--port 7"),
        ("--coordinator_address a:1", "--coordinator-address a:1"),
    ],
)
def test_flags_have_two_spellings(new: str, old: str) -> None:
    """The plain spelling of a flag and the earlier one mean the same."""
    parser = command_parser("start")
    assert parser is not None
    assert parser.parse_args(new.split()) == parser.parse_args(old.split())


@pytest.mark.parametrize(("new", "old"), [("before", "lockstep"), ("after", "parity"), ("off", "off")])
def test_guards_have_two_names(new: str, old: str) -> None:
    """A start with the plain name of a guard asks for the same as one with the earlier name."""
    assert resolve_start(guard=new).options == resolve_start(guard=old).options


@pytest.mark.parametrize(
    ("arguments", "names_shape"),
    [
        ({}, False),
        ({"guard": "off", "keep": True, "initialize": {}}, False),
        ({"ranks": 4}, True),
        ({"devices": 2}, True),
        ({"init": False}, True),
        ({"hosts": ["a"]}, True),
        ({"profile": "local"}, True),
    ],
)
def test_bare_start_names_no_shape(arguments: dict[str, Any], names_shape: bool) -> None:  # noqa: FBT001  # a parameter
    """A start without a shape, hosts or a profile is one that uses the running cluster of that name."""
    assert resolve_start(**arguments).names_shape is names_shape


@pytest.fixture
def topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page on messages with one topic."""
    page = tmp_path / MESSAGES_PAGE
    page.parent.mkdir()
    page.write_text("# Messages\n\n(not-clean)=\n## NotClean\n\nRanks **differ**.\n")
    monkeypatch.setattr(help_topics, "docs_dir", lambda: tmp_path)


@pytest.mark.usefixtures("topics")
def test_help_shows_a_topic(capsys: pytest.CaptureFixture[str]) -> None:
    """`help TOPIC` prints the section of the page on messages as plain text."""
    run_command(Session(shell=None), "help not-clean")
    assert capsys.readouterr().out == "NotClean\n========\n\nRanks differ.\n"
    with pytest.raises(UsageError, match="unknown help topic 'not-clea'"):
        run_command(Session(shell=None), "help not-clea")


@pytest.mark.usefixtures("topics")
def test_topics_are_completed() -> None:
    """Tab after `help` offers the commands and the topics."""
    assert complete_line("%mhjax help not", cell_parser(), lambda _: []) == (["not-clean"], "not")
    assert complete_line("%mhjax help sta", cell_parser(), lambda _: [])[0] == ["start", "status"]


def test_missing_topics_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the page a topic is a usage error that names the page; the help of commands still works."""
    monkeypatch.setattr(help_topics, "docs_dir", lambda: tmp_path)
    with pytest.raises(UsageError, match=r"reference/messages\.md is missing"):
        run_command(Session(shell=None), "help not-clean")
    assert find_help("stop").startswith("%mhjax stop")


@pytest.mark.parametrize("line", ["-x", "x['a b'].shape", "{1: 'it'}", "f(1) -- 2", 'print("a  b")'])
def test_eval_keeps_the_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`eval` runs its line as it was typed: quotes, blanks and a leading minus sign are the code's."""
    cells: list[str] = []
    monkeypatch.setattr(Session, "run_cell", lambda _self, source, _flags: cells.append(source))
    run_command(Session(shell=None), f"eval {line}")
    assert cells == [line]


def test_version_needs_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """`version` and `--version` print the versions of mhnb, JAX and Python."""
    for line in ("version", "--version"):
        run_command(Session(shell=None), line)
        assert re.match(r"mhnb \S+ · jax .+ in this notebook · Python 3\.\d+", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pull a b --as c", "pull --as c: expected one variable, got 2"),
        ("pull a --as 1c", "pull --as '1c': expected a Python name"),
        ("pull a --as for", "pull --as 'for': expected a Python name"),
        ("eval", "the following arguments are required: EXPRESSION"),
    ],
)
def test_bad_arguments_of_new_commands(line: str, message: str) -> None:
    """A bad argument is refused before a cluster is needed, and the error ends with the help of the command."""
    with pytest.raises(UsageError) as error:
        run_command(Session(shell=None), line)
    assert message in str(error.value)
    assert str(error.value).endswith(f"\n  Help: %mhjax help {line.split(maxsplit=1)[0]}")


def test_cleanup_without_orphans(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`cleanup` and `reap` say that no process was left behind."""
    monkeypatch.setattr(files, "find_orphans", lambda _environment: [])
    for line in ("cleanup", "reap"):
        run_command(Session(shell=None), line)
        assert capsys.readouterr().out.startswith("mhjax · no orphaned processes on this machine")

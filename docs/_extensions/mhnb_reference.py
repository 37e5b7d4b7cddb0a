"""Directives that write the reference pages from mhnb itself: its parsers, settings, public names and errors.

On a code host a page shows the name of its directive; `make docs` puts the generated text there.
Each directive writes Markdown, which is then parsed as if it stood in the page.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

# -- flags of a parser


def write_flags(parser: argparse.ArgumentParser) -> str:
    """Write a table of the arguments for each group of a parser that has any; hidden arguments are left out."""
    tables = []
    for group in parser._action_groups:  # noqa: SLF001  # argparse has no public list
        rows = [_write_row(action) for action in group._group_actions if _is_shown(action)]  # noqa: SLF001
        if rows:
            is_named = group.title not in ("options", "positional arguments", None)
            tables.append([*([f"*{_escape(str(group.title))}*", ""] if is_named else []), *_HEAD, *rows, ""])
    return "\n".join(line for table in tables for line in table)


_HEAD = ("| argument | meaning |", "|---|---|")


def _is_shown(action: argparse.Action) -> bool:
    is_help = isinstance(action, argparse._HelpAction)  # noqa: SLF001  # the class has no public name
    return not is_help and action.help != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)  # noqa: SLF001


def _write_row(action: argparse.Action) -> str:
    value = _write_value(action)
    # A flag in two spellings that differ only in - and _ is shown once.
    names = [name for name in action.option_strings if not re.match("--.*_", name)] or action.option_strings
    shown = [f"{name} {value}".rstrip() for name in names] or [value]
    return f"| {', '.join(f'`{_escape_bar(text)}`' for text in shown)} | {_escape(_expand_help(action))} |"


def _write_value(action: argparse.Action) -> str:
    """Write the placeholder of an argument's value as a usage line does; empty for a switch."""
    if action.nargs == 0:
        return ""
    metavar = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else None)
    if isinstance(metavar, tuple):
        return " ".join(metavar)
    name = metavar or (action.dest.upper() if action.option_strings else action.dest)
    many = {"*": f"[{name} ...]", "+": f"{name} [{name} ...]", "?": f"[{name}]", "...": f"{name} ..."}
    return many.get(str(action.nargs), name)


def _expand_help(action: argparse.Action) -> str:
    """Return the help text with its %(default)s filled in."""
    values = {**vars(action), "prog": ""}
    return ((action.help or "—") % values).replace("\n", " ")


def _escape(text: str) -> str:
    """Escape what Markdown, or a table in it, would read as markup; parts in backticks stay."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        _escape_bar(part) if part.startswith("`") else re.sub(r"([\\*_<>\[\]|{}$~])", r"\\\1", part) for part in parts
    )


def _escape_bar(text: str) -> str:
    return text.replace("|", r"\|")


def _code_block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.strip()}\n```\n"


def _sentence(text: str) -> str:
    """Return a text as a sentence."""
    text = " ".join(text.split())
    return _escape(text[:1].upper() + text[1:] + ("" if text.endswith((".", ":", "?")) else "."))


# -- %mhjax and %%mhjax


def write_magics() -> str:
    """Write every `%mhjax` command with its flags, by group, and the flags of `%%mhjax`."""
    from mhnb.magics import commands

    cell = commands.cell_parser()
    lines = ["(magic-cell)=", "## Cells: `%%mhjax`", "", _code_block(_usage(cell, "%%mhjax")), write_flags(cell)]
    for group in commands.GROUPS:
        lines += [f"## {group[:1].upper()}{group[1:]}", ""]
        for command in commands.COMMANDS.values():
            if command.group == group and not command.is_hidden:
                lines += _write_command(command, commands.command_parser(command.name))
    return "\n".join(lines)


def _write_command(command: Any, parser: argparse.ArgumentParser) -> Iterator[str]:
    name = command.name
    yield from (f"(magic-{name})=", f"### `%mhjax {name}`", "", f"{_sentence(command.summary)}\n")
    yield _code_block(_usage(parser, f"%mhjax {name}"))
    yield write_flags(parser)
    if command.details:
        yield _code_block(command.details)


def _usage(parser: argparse.ArgumentParser, name: str) -> str:
    """Return the usage line, as a user types it, on as many lines as it needs."""
    usage = " ".join(parser.format_usage().replace("::", "").split()).removeprefix("usage:").strip()
    usage = usage.replace("[-h] ", "").replace(" [-h]", "")
    rest = usage.lstrip("%").removeprefix(parser.prog.lstrip("%")).strip()
    return "\n    ".join(_wrap(f"{name} {rest}".split(" ")))


def _wrap(words: list[str], width: int = 90) -> list[str]:
    """Break a usage line, but not inside brackets."""
    lines, line, depth = [], "", 0
    for word in words:
        if depth == 0 and line and len(line) + len(word) > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
        depth += word.count("[") - word.count("]")
    return [*lines, line]


# -- the mhnb command of a shell


def write_cli() -> str:
    """Write every command of `mhnb` with its flags, by group."""
    from mhnb.cli import main

    parsers, lines = main.find_commands(main.build_parser()), []
    for group, members in groupby(main.COMMANDS.values(), key=lambda command: command.group):
        lines += [f"## {group[:1].upper()}{group[1:]}", ""]
        for command in members:
            if command.is_hidden:
                continue
            name, parser = command.name, parsers[command.name]
            lines += [f"(mhnb-{name})=", f"### `mhnb {name}`", "", f"{_sentence(command.summary)}\n"]
            lines += [_code_block(_usage(parser, f"mhnb {name}"))]
            lines += [
                write_flags(parser),
                *([_code_block(parser.epilog)] if parser.epilog else []),
                *_write_subcommands(parser, f"mhnb {name}"),
            ]
    return "\n".join(lines)


def _write_subcommands(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    for action in parser._actions:  # noqa: SLF001  # argparse has no public list
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            about = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001
            for verb, command in action.choices.items():
                yield from (f"#### `{name} {verb}`", "", f"{_sentence(about[verb].replace('%%', '%'))}\n")
                yield _code_block(_usage(command, f"{name} {verb}"))
                yield write_flags(command)


# -- settings of profiles


def write_profiles() -> str:
    """Write the settings of every kind of profile, each with its type, default and help."""
    from mhnb.launchers.profiles import KINDS

    lines = []
    for kind, cls in sorted(KINDS.items()):
        lines += [
            f"(profile-{kind})=",
            f"## {kind}: `c.{cls.__name__}`",
            "",
            f"{_sentence(inspect.getdoc(cls) or '')}",
            "",
        ]
        lines += [*_write_traits(cls), ""]
    return "\n".join(lines)


def _write_traits(cls: Any) -> Iterator[str]:
    """Write a table of the settings of a class."""
    yield from ("| setting | type | default | meaning |", "|---|---|---|---|")
    for name, trait in sorted(cls.class_traits(config=True).items()):
        default = trait.default() if callable(getattr(trait, "default", None)) else trait.default_value
        shown = "—" if default is None else f"`{_escape_bar(repr(default))}`"
        yield f"| `{name}` | {_escape(trait_type(trait))} | {shown} | {_escape(trait.help)} |"


def trait_type(trait: Any) -> str:
    """Return the type of a setting as a reader knows it."""
    import traitlets

    if isinstance(trait, traitlets.Enum):
        return " or ".join(f"`{value!r}`" for value in trait.values)
    names = {
        traitlets.Bool: "bool", traitlets.Integer: "int", traitlets.Unicode: "str", traitlets.List: "list of str",
        traitlets.Dict: "dict of str",
    }  # fmt: skip
    return next((name for cls, name in names.items() if isinstance(trait, cls)), type(trait).__name__.lower())


# -- the user's defaults


def write_configuration() -> str:
    """Write the settings of `c.Mhjax`, each with its type, default and help."""
    from mhnb.magics.settings import Mhjax

    return "\n".join(_write_traits(Mhjax))


# -- the Python names


def write_python() -> str:
    """Write the public names of mhnb, its errors with their tree, and the functions of mhnb.teach, for autodoc to fill in."""
    import mhnb

    functions = [name for name in mhnb.__all__ if inspect.isfunction(getattr(mhnb, name)) and "extension" not in name]
    lines = ["## Functions", "", *(_autodoc("function", f"mhnb.{name}") for name in functions)]
    for title, path in (
        ("Cluster", "mhnb.Cluster"),
        ("Results", "mhnb.CellResult"),
        ("", "mhnb.core.output.results.RankResult"),
    ):
        lines += [*([f"## {title}", ""] if title else []), _autodoc("class", path, members=True)]
    lines += ["## Errors", "", *_write_errors()]
    lines += ["## Exercises: mhnb.teach", ""]
    lines += [_autodoc("function", f"mhnb.teach.{name}") for name in importlib.import_module("mhnb.teach").__all__]
    return "\n".join(lines)


def _write_errors() -> Iterator[str]:
    from mhnb import errors

    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")
    yield _code_block(next(part for part in tree if "└──" in part))
    for name in errors.__all__:
        yield _autodoc("exception", f"mhnb.errors.{name}", options=":show-inheritance:")


def _autodoc(kind: str, path: str, *, members: bool = False, options: str = "") -> str:
    lines = [f".. auto{kind}:: {path}", *([f"   {options}"] if options else []), *(["   :members:"] if members else [])]
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


# -- the directives


WRITERS: dict[str, Callable[[], str]] = {
    "mhnb-cli": write_cli,
    "mhnb-configuration": write_configuration,
    "mhnb-magics": write_magics,
    "mhnb-profiles": write_profiles,
    "mhnb-python": write_python,
}


class GeneratedDirective(SphinxDirective):
    """Puts the text of a writer in the place of the directive."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Write the text and parse it."""
        # The page depends on the modules that the text comes from.
        for module in (
            "mhnb.magics.commands",
            "mhnb.cli.main",
            "mhnb.launchers.profiles",
            "mhnb.errors",
            "mhnb.magics.settings",
        ):
            self.env.note_dependency(str(importlib.import_module(module).__file__))
        parent = nodes.Element()
        lines = StringList(WRITERS[self.name]().splitlines(), source=self.env.doc2path(self.env.docname))
        self.state.nested_parse(lines, 0, parent, match_titles=True)
        return parent.children


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    for name in WRITERS:
        app.add_directive(name, GeneratedDirective)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

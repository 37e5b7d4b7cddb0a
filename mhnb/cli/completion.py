"""Shell completion of commands, options and names for bash, zsh and fish.

A shell asks by running `mhnb` with the line in the environment, and the library argcomplete answers from the parser.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from mhnb.errors import MhnbError

SHELLS = ("bash", "zsh", "fish")
_INSTALL = {
    "bash": 'add this line to ~/.bashrc: eval "$(mhnb completion bash)"',
    "zsh": 'add this line to ~/.zshrc: eval "$(mhnb completion zsh)"',
    "fish": "run: mhnb completion fish > ~/.config/fish/completions/mhnb.fish",
}
DETAILS = "\n".join(["To install it:", *(f"  {shell:<6}{how}" for shell, how in _INSTALL.items())])


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument of `mhnb completion`."""
    parser.add_argument("shell", choices=SHELLS, metavar="bash|zsh|fish", help="the shell")


def print_completion(args: argparse.Namespace) -> int:
    """Print the code that a shell evaluates."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["mhnb"], shell=args.shell))
    return 0


def complete(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser], hidden: Collection[str]
) -> None:
    """Answer the shell's completion request and exit; without one, return."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    for name, command in commands.items():
        for action in command._actions:  # noqa: SLF001  # argparse has no public list
            if (
                completer := _find_completer(name, action, [each for each in commands if each not in hidden])
            ) is not None:
                action.completer = completer  # type: ignore[attr-defined]  # the attribute that argcomplete looks for
    argcomplete.autocomplete(parser, always_complete_options=False, exclude=hidden)


_Completer = Callable[..., Iterable[str]]


def _find_completer(command: str, action: argparse.Action, commands: Sequence[str]) -> _Completer | None:
    """Return an argument's completer; None for argcomplete's own: choices or files."""
    if action.dest == "profile":
        return _list_profile_names
    if action.dest != "name" or command in ("run", "start"):
        return None
    if command == "help":
        return lambda **_: _list_help_names(commands)
    return _list_cluster_names


def _list_cluster_names(**_: object) -> list[str]:
    """Return the running clusters' names, in full where they are ambiguous."""
    from mhnb.system.run_dir import read_running_clusters

    try:
        records = read_running_clusters(os.environ)
    except MhnbError:
        # The shell has no place for an error: `mhnb list` shows it.
        return []
    counts = Counter(record.name for record in records)
    return sorted(record.name if counts[record.name] == 1 else record.full_name for record in records)


def _list_profile_names(**_: object) -> list[str]:
    from mhnb.launchers.profiles import user_profiles
    from mhnb.system.resources import list_profiles

    return sorted([*list_profiles(), *user_profiles()])


def _list_help_names(commands: Sequence[str]) -> list[str]:
    from mhnb.system.help_topics import list_topics

    return sorted([*commands, *list_topics()])

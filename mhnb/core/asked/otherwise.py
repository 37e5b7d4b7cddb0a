"""Compare the options of a start with those of the running cluster of the same name."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["diff_options", "format_options_mismatch"]


def diff_options(running: Mapping[str, object], requested: Mapping[str, object]) -> list[str]:
    """Describe each requested option that differs in the running cluster; empty if none differs.

    Only the names of environment variables are shown, because a value may be secret.

    Args:
        running: options of the cluster by name; contains those of `requested`.
        requested: options of the present start. Options that were not given are not compared.

    >>> diff_options({"user": "me", "port": 22}, {"user": "you", "port": 22})
    ["user is 'me', and 'you' was asked for"]
    >>> diff_options({"environment": {"TOKEN": "a"}}, {"environment": {"TOKEN": "b"}})
    ['environment: TOKEN has another value']
    """
    found = []
    for name, value in requested.items():
        current = running[name]
        if current == value:
            continue
        if isinstance(current, Mapping) and isinstance(value, Mapping):
            found += _diff_mappings(name, current, value)
        else:
            found.append(f"{name} is {_format_value(current)}, and {_format_value(value)} was asked for")
    return found


def format_options_mismatch(name: str, differences: list[str]) -> str:
    """Format the differences for the user who typed the start, with the possible next steps.

    >>> print(format_options_mismatch("a", ["user is 'me', and 'you' was asked for"]))
    cluster 'a' runs already, and was started otherwise: user is 'me', and 'you' was asked for
      %mhjax stop a ends it, then start again; %mhjax restart keeps what it was started with; or --name another
    """
    return (
        f"cluster {name!r} runs already, and was started otherwise: {'; '.join(differences)}\n"
        f"  %mhjax stop {name} ends it, then start again; %mhjax restart keeps what it was started with; or --name another"
    )


def _diff_mappings(name: str, current: Mapping[object, object], requested: Mapping[object, object]) -> list[str]:
    lines = []
    for keys, difference in (
        ([key for key in requested if key not in current], "not set"),
        ([key for key in current if key not in requested], "set, and was not asked for"),
        ([key for key in requested if key in current and current[key] != requested[key]], "another value"),
    ):
        if keys:
            verb = "has" if difference == "another value" else "is"
            lines.append(f"{name}: {', '.join(map(str, keys))} {verb} {difference}")
    return lines


def _format_value(value: object) -> str:
    return "not given" if value in (None, "", (), []) else repr(value)

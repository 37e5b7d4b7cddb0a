"""Compare the options of a start with those of the running cluster of the same name."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["describe_otherwise", "list_differences"]


def list_differences(running: Mapping[str, object], asked: Mapping[str, object]) -> list[str]:
    """Describe each requested option that differs in the running cluster; empty if none differs.

    Only the names of environment variables are shown, because a value may be secret.

    Args:
        running: options of the cluster by name; contains those of `asked`.
        asked: options of the present start. Options that were not given are not compared.

    >>> list_differences({"user": "me", "port": 22}, {"user": "you", "port": 22})
    ["user is 'me', and 'you' was asked for"]
    >>> list_differences({"environment": {"TOKEN": "a"}}, {"environment": {"TOKEN": "b"}})
    ['environment: TOKEN has another value']
    """
    found = []
    for name, wanted in asked.items():
        has = running[name]
        if has == wanted:
            continue
        if isinstance(has, Mapping) and isinstance(wanted, Mapping):
            found += _differing_keys(name, has, wanted)
        else:
            found.append(f"{name} is {_show(has)}, and {_show(wanted)} was asked for")
    return found


def describe_otherwise(name: str, differences: list[str]) -> str:
    """Format the differences for the user who typed the start, with the possible next steps.

    >>> print(describe_otherwise("a", ["user is 'me', and 'you' was asked for"]))
    cluster 'a' runs already, and was started otherwise: user is 'me', and 'you' was asked for
      %mhjax stop a ends it, then start again; %mhjax restart keeps what it was started with; or --name another
    """
    return (
        f"cluster {name!r} runs already, and was started otherwise: {'; '.join(differences)}\n"
        f"  %mhjax stop {name} ends it, then start again; %mhjax restart keeps what it was started with; or --name another"
    )


def _differing_keys(name: str, has: Mapping[object, object], wanted: Mapping[object, object]) -> list[str]:
    told = []
    for keys, how in (
        ([key for key in wanted if key not in has], "not set"),
        ([key for key in has if key not in wanted], "set, and was not asked for"),
        ([key for key in wanted if key in has and has[key] != wanted[key]], "another value"),
    ):
        if keys:
            verb = "has" if how == "another value" else "is"
            told.append(f"{name}: {', '.join(map(str, keys))} {verb} {how}")
    return told


def _show(value: object) -> str:
    return "not given" if value in (None, "", (), []) else repr(value)

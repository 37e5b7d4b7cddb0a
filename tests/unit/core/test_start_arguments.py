"""Invalid user input: the error names the value and what was expected, before anything starts or is sent."""

from __future__ import annotations

import inspect
import math
import pydoc
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import mhnb
from mhnb.cluster import manager
from mhnb.cluster.export import export_notebook
from mhnb.cluster.options import ARGUMENT_NAMES, StartOptions, resolve_start
from mhnb.cluster.requests import check_names
from mhnb.core.cell_request import build_cell_request
from mhnb.core.ranks import resolve_ranks
from mhnb.errors import InvalidRequest
from mhnb.system.run_dir import check_name

INVALID_ARGUMENTS: list[tuple[str, Any, str]] = [
    ("devices", "2", "a whole number"),
    ("devices", 1.5, "a whole number"),
    ("devices", True, "a whole number"),
    ("ranks", "3", "a whole number"),
    ("ranks_per_host", [2], "a whole number"),
    ("name", None, "a string"),
    ("name", 5, "a string"),
    ("name", [], "a string"),
    ("start_timeout_s", -1, "seconds above 0"),
    ("start_timeout_s", "x", "seconds above 0"),
    ("start_timeout_s", math.nan, "seconds above 0"),
    ("host_timeout_s", 0, "seconds above 0"),
    ("keep", "yes", "True or False"),
    ("standby", 2, "True or False"),
    ("init", None, "True or False"),
    ("initialize", 5, "by name"),
    ("initialize", {5: 1}, "by name"),
    ("profile", 5, "name of a profile"),
    ("address", 5, "a string"),
    ("sync", 5, "a folder"),
    ("on_progress", 5, "a function"),
]


@pytest.mark.parametrize(("name", "value", "expected"), INVALID_ARGUMENTS)
def test_argument_of_wrong_type_is_named(name: str, value: Any, expected: str) -> None:
    """`start` names the argument, its value and what was expected, before it starts a process."""
    with pytest.raises(InvalidRequest) as error:
        manager.start(2, **{name: value})
    assert str(error.value).startswith(f"{name}={value!r}: ")
    assert expected in str(error.value)


_OPTION_FIELDS = [part for part in fields(StartOptions) if part.name != "reach"]
"""The settings of a profile, `reach`, are the other keywords of `start`."""


def test_start_has_a_parameter_for_each_option() -> None:
    """The parameters of `mhnb.start` have the types of the options and cannot drift from them; `help` explains each."""
    parameters = inspect.signature(mhnb.start).parameters
    text = pydoc.plain(pydoc.render_doc(mhnb.start))
    for part in _OPTION_FIELDS:
        parameter = parameters[part.name]
        assert parameter.kind is not inspect.Parameter.VAR_KEYWORD
        # A folder is stored as a text, and a guard under one of its two names.
        base = {"sync": "str | os.PathLike[str]", "guard": "GuardName"}.get(
            part.name, str(part.type).removesuffix(" | None")
        )
        assert parameter.annotation == (f"{base} | None" if parameter.default is None else base)
        assert parameter.default in (None, part.default)
    assert parameters.keys() - {"on_progress", "settings"} == set(ARGUMENT_NAMES)
    open_ended = [p.name for p in parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
    assert open_ended == ["settings"]
    for name, parameter in parameters.items():
        assert parameter.annotation is not parameter.empty
        assert f"        {'**' * (name == 'settings')}{name}: " in text.partition("Args:")[2]
        assert f"{name}: " in text.partition("Start ranks")[0]


@pytest.mark.parametrize("name", ARGUMENT_NAMES)
def test_each_option_reaches_its_check(name: str) -> None:
    """`start` hands each option on under its own name, and no type of an option is left unchecked."""
    value: Any = object()
    with pytest.raises(InvalidRequest) as error:
        manager.start(**{name: value})
    assert str(error.value).startswith((f"{name}={value!r}: ", f"--{name}"))


def test_wrong_types_are_known_to_mypy() -> None:
    """mypy flags a wrong type of a keyword before it is run: it reports each of these comments that is not needed."""
    calls = (
        lambda: mhnb.start(keep="yes"),  # type: ignore[arg-type]
        lambda: mhnb.start(guard="strict"),  # type: ignore[arg-type]
        lambda: mhnb.start(ranks="4"),  # type: ignore[arg-type]
        lambda: mhnb.start(host_timeout_s="20"),  # type: ignore[arg-type]
        lambda: mhnb.start(initialize=["process_id"]),  # type: ignore[arg-type]
        lambda: mhnb.start(sync=5),  # type: ignore[arg-type]
    )
    for call in calls:
        with pytest.raises(InvalidRequest):
            call()


def test_default_arguments_are_not_given() -> None:
    """A start without arguments asks for the default options, and for no particular one of a running cluster."""
    parameters = inspect.signature(mhnb.start).parameters.values()
    request = resolve_start(**{p.name: p.default for p in parameters if p.name not in ("on_progress", "settings")})
    assert (request.options, request.given) == (StartOptions(), ())


def test_given_options_are_known() -> None:
    """An option that has its default but was given is compared with that of a running cluster; how long a start may take is not."""
    request = resolve_start(keep=False, encrypt=True, standby=None, start_timeout_s=5, connection="")
    assert (request.options, request.given) == (StartOptions(start_timeout_s=5), ("keep", "encrypt"))


def test_options_that_conflict_are_refused() -> None:
    """Standby ranks do not outlive the notebook, and cannot share the active ranks' address."""
    with pytest.raises(InvalidRequest, match="--keep cannot be combined with --standby"):
        manager.start(keep=True, standby=True)
    with pytest.raises(InvalidRequest, match="--standby cannot be combined with coordinator_address='a:1'"):
        manager.start(spare=True, initialize={"coordinator_address": "a:1"})


def test_valid_arguments_are_accepted(tmp_path: Path) -> None:
    """None is accepted where it has a meaning, and folders as paths."""
    (tmp_path / "ipcluster_config.py").write_text("c = get_config()\nc.Cluster.engine_launcher_class = 'mhnb-ssh'\n")
    request = resolve_start(hosts=["a"], devices=None, profile=tmp_path, sync=tmp_path, initialize={}, ranks=None)
    assert (request.shape.profile, request.options.sync) == (str(tmp_path), str(tmp_path.resolve()))
    request = resolve_start(start_timeout_s=math.inf, host_timeout_s=2, sync="", keep=False, initialize=None)
    assert request.options == StartOptions(start_timeout_s=math.inf, host_timeout_s=2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (9, "ranks=9: expected a text such as '0,2-3' or numbers such as [0, 2]"),
        (1.5, "ranks=1.5: expected a text"),
        ([], "ranks=[] is empty"),
        ("", "ranks='' is empty"),
        ([True], "got 'True'"),
        ("٣", "got '٣'"),
    ],
)
def test_invalid_ranks_are_refused(given: Any, expected: str) -> None:
    """A single number is not a set of ranks, and an empty set does not mean all ranks."""
    with pytest.raises(InvalidRequest) as error:
        resolve_ranks(given, 2)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"timeout_s": "5"}, "--timeout '5': expected a number of seconds above 0"),
        ({"timeout_s": True}, "--timeout True: expected a number of seconds above 0"),
        ({"timeout_s": [1]}, "--timeout [1]: expected a number of seconds above 0"),
        ({"guard": ""}, "--guard '': expected lockstep, parity or off"),
        ({"on_snapshot": 5}, "on_snapshot=5: expected a function"),
    ],
)
def test_invalid_cell_flags_are_refused(flags: dict[str, Any], expected: str) -> None:
    """Invalid flags are refused before the cell is sent, because no rank could follow or stop it."""
    with pytest.raises(InvalidRequest) as error:
        build_cell_request("1", 2, **({"guard": "off"} | flags))
    assert expected in str(error.value)


def test_invalid_variable_names_are_refused() -> None:
    """A value that is not a text is not a variable's name."""
    with pytest.raises(InvalidRequest, match="pull: expected names of variables, got 5"):
        check_names([5], "pull")  # type: ignore[list-item]


def test_too_long_cluster_name_is_refused() -> None:
    """The name is part of file names, so it is checked before any file exists; letters of every language are accepted."""
    with pytest.raises(InvalidRequest, match="300 characters are too many"):
        check_name("x" * 300)
    assert check_name("größe-2") == "größe-2"


def test_invalid_export_files_are_refused(tmp_path: Path) -> None:
    """The source must be a notebook and must exist, and so must the target's folder."""
    (tmp_path / "bad.ipynb").write_text("not a notebook")
    for name, message in (
        ("bad.ipynb", "is not a notebook"),
        ("gone.ipynb", "cannot be read: No such file"),
        (".", "cannot be read"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            export_notebook(tmp_path / name, tmp_path / "o.py")
    (tmp_path / "a.ipynb").write_text(
        '{"nbformat": 4, "cells": [{"cell_type": "code", "source": "%%mhjax\\nx = 1", "metadata": {}, "outputs": []}]}'
    )
    with pytest.raises(InvalidRequest, match=r"o\.py cannot be written: No such file"):
        export_notebook(tmp_path / "a.ipynb", tmp_path / "nope" / "o.py")

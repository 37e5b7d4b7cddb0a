"""The user's defaults: traitlets of the shell's configuration, below the flags of a line."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets import TraitError
from traitlets.config import Config

from mhnb.cluster.options import resolve_start
from mhnb.core.shorthand import ShapeArgument
from mhnb.errors import InvalidRequest
from mhnb.magics.lifecycle import _apply_settings
from mhnb.magics.magics import parse_cell_flags
from mhnb.magics.session import CellFlags
from mhnb.magics.settings import Mhjax, load_settings, unload_settings


def make_shell(**values: Any) -> InteractiveShell:
    """Return a bare shell whose configuration has these values of `c.Mhjax`."""
    return InteractiveShell(config=Config({"Mhjax": values, "HistoryManager": {"enabled": False}}))


def test_configuration_is_read_and_listed() -> None:
    """Values of ipython_config.py are read, and `%config` lists the class until the extension is unloaded."""
    shell = make_shell(view="tabs", guard="after", timeout_s=30, shape="8x4")
    settings = load_settings(shell)
    assert (settings.view, settings.guard, settings.timeout_s) == ("tabs", "parity", 30.0)
    assert settings.start_shape == ShapeArgument(8, 4)
    assert settings.__class__ in map(type, shell.configurables)
    shell.run_line_magic("config", "Mhjax.view = 'grid'")
    assert settings.view == "grid"
    unload_settings(shell)
    assert settings.__class__ not in map(type, shell.configurables)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"view": "cards"}, "cards"),
        ({"guard": "strict"}, "strict"),
        ({"timeout_s": -1.0}, "expected a number of seconds above 0"),
        ({"shape": "four"}, "for example 4 or 4x2; got 'four'"),
        ({"shape": "0x4"}, "'0x4': hosts=0: expected a number from 1 to"),
        ({"shape": "4x999"}, "'4x999': devices=999: expected the number of devices per host, from 1 to"),
    ],
)
def test_invalid_configuration_is_named(values: dict[str, Any], expected: str) -> None:
    """A bad value is an error of the configuration when the extension is loaded, and also of an assignment later."""
    with pytest.raises(InvalidRequest, match=r"c\.Mhjax in ipython_config\.py is invalid") as error:
        load_settings(make_shell(**values))
    assert expected in str(error.value)
    settings = Mhjax()
    name, value = next(iter(values.items()))
    with pytest.raises(TraitError, match=expected.split(";", maxsplit=1)[0]):
        setattr(settings, name, value)


def test_flag_of_a_cell_has_precedence() -> None:
    """A cell without the flag has the default; a flag on its line wins."""
    defaults = CellFlags(view="tabs", timeout_s=30.0)
    assert parse_cell_flags("", defaults) == defaults
    assert parse_cell_flags("--quiet", defaults).view == "tabs"
    flags = parse_cell_flags("--view fold --timeout 5", defaults)
    assert (flags.view, flags.timeout_s) == ("fold", 5.0)


def test_start_has_defaults_for_what_is_not_named() -> None:
    """A shape and a guard that the line does not name come from the settings, and are not compared with a running cluster."""
    settings = Mhjax(shape="3x1", guard="off")
    arguments: dict[str, Any] = {"guard": None}
    request = _apply_settings(resolve_start(**arguments), arguments, settings)
    assert (request.shape.process_count, request.shape.devices, request.options.guard) == (3, 1, "off")
    assert (request.given, request.names_shape) == ((), False)


def test_flags_of_a_start_have_precedence() -> None:
    """A shape and a guard on the line win."""
    settings = Mhjax(shape="3x1", guard="off")
    arguments: dict[str, Any] = {"guard": "parity", "ranks": 2}
    request = _apply_settings(resolve_start(**arguments), arguments, settings)
    assert (request.shape.process_count, request.options.guard) == (2, "parity")

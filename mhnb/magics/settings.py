"""The user's defaults for `%mhjax`, set by `c.Mhjax` or `%config Mhjax`."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from traitlets import Enum, Float, TraitError, Unicode, validate
from traitlets.config import Configurable

from mhnb.core.arguments import is_positive_seconds
from mhnb.core.cell_request import GUARDS, guard_argument
from mhnb.core.cluster_spec import ClusterSpec, check_counts
from mhnb.core.shorthand import ShapeArgument, shape_argument
from mhnb.errors import InvalidRequest

VIEWS = ("fold", "tabs", "grid")
"""How the outputs of the ranks can be arranged."""


class _GuardName(Enum[Any]):
    """A guard's name; an older name is replaced by the present one."""

    def validate(self, obj: Any, value: Any) -> Any:
        return super().validate(obj, guard_argument(value) if isinstance(value, str) else value)


class Mhjax(Configurable):
    """Defaults of `%mhjax` and `%%mhjax`. A flag on the line has precedence."""

    view: Any = Enum(VIEWS, "fold", help="How to arrange the outputs of the ranks.").tag(config=True)
    guard: Any = _GuardName(
        GUARDS,
        None,
        allow_none=True,
        help="When a start lets launches be compared: before each one (lockstep), after the cell (parity), or off.",
    ).tag(config=True)
    timeout_s: Any = Float(
        None, allow_none=True, help="Seconds after which a cell is interrupted; None: no limit."
    ).tag(config=True)
    shape: Any = Unicode("", help="Ranks, or ranks x devices, of a start that names no shape, such as '8x4'.").tag(
        config=True
    )

    @validate("timeout_s")
    def _check_timeout(self, proposal: Any) -> Any:
        if proposal["value"] is not None and not is_positive_seconds(proposal["value"]):
            raise TraitError(f"Mhjax.timeout_s = {proposal['value']!r}: expected a number of seconds above 0, or None")
        return proposal["value"]

    @validate("shape")
    def _check_shape(self, proposal: Any) -> Any:
        if proposal["value"]:
            try:
                check_counts(ClusterSpec(*shape_argument(proposal["value"])))
            except (ArgumentTypeError, InvalidRequest) as error:
                raise TraitError(f"Mhjax.shape = {proposal['value']!r}: {error}") from error
        return proposal["value"]

    @property
    def start_shape(self) -> ShapeArgument | None:
        """The user's shape for a start; None for mhnb's own default."""
        return shape_argument(self.shape) if self.shape else None


def load_settings(shell: Any) -> Mhjax:
    """Return the settings of a shell's configuration, and list them for `%config`.

    Raises:
        InvalidRequest: a value in the configuration is invalid.
    """
    try:
        settings = Mhjax(parent=shell)
    except TraitError as error:
        raise InvalidRequest(f"c.Mhjax in ipython_config.py is invalid: {error}") from error
    shell.configurables.append(settings)
    return settings


def unload_settings(shell: Any) -> None:
    """Remove the settings from the list of `%config`."""
    shell.configurables[:] = [each for each in shell.configurables if not isinstance(each, Mhjax)]

"""Draw the controls of a form, with labels and reasons.

Below a row of controls are the reasons for what is not valid.
A control has the attribute `data-field` with its name, by which `form.js` reports a change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Option:
    """One of several values of a control."""

    value: str
    label: str
    is_chosen: bool = False
    is_disabled: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a field is not valid."""

    reason: str
    typed: str | None = None
    """The text that was not accepted; None if the field's own value is the problem."""


class Fields:
    """Draws controls; `uid` begins their ids and is unique in the notebook."""

    def __init__(self, uid: str, refused: Mapping[str, Refused]) -> None:
        self._uid, self._refused = uid, refused

    def text(
        self,
        name: str,
        label: str,
        value: str,
        *,
        chars: int = 8,
        placeholder: str = "",
        suggestions: Sequence[str] = (),
    ) -> str:
        """Draw a text field that shows so many characters."""
        refused = self._refused.get(name)
        shown = value if refused is None or refused.typed is None else refused.typed
        listed, options = "", ""
        if suggestions:
            listed = f' list="{self._uid}-{name}-list"'
            options = "".join(f'<option value="{escape(word)}"></option>' for word in suggestions)
            options = f'<datalist id="{self._uid}-{name}-list">{options}</datalist>'
        control = (
            f'<input type="text" {self._attributes(name, name)} value="{escape(shown)}" placeholder="{escape(placeholder)}" '
            f'style="width:{chars + 3}ch" autocomplete="off" spellcheck="false"{listed}>'
        )
        return self._label(name, label, control + options)

    def select(self, name: str, label: str, options: Sequence[Option], *, reason_of: str = "") -> str:
        """Draw a drop-down list; `reason_of` names what refuses the choice."""
        drawn = "".join(
            f'<option value="{escape(one.value)}"{" selected" * one.is_chosen}{" disabled" * one.is_disabled}>'
            f"{escape(one.label)}</option>"
            for one in options
        )
        return self._label(name, label, f"<select {self._attributes(name, reason_of or name)}>{drawn}</select>")

    def choices(self, name: str, label: str, options: Sequence[Option]) -> str:
        """Draw buttons of which one is chosen."""
        buttons = "".join(
            f'<label><input type="radio" name="{self._uid}-{name}" id="{self._uid}-{name}-{escape(one.value)}" '
            f'data-field="{name}" value="{escape(one.value)}"{" checked" * one.is_chosen}>{escape(one.label)}</label>'
            for one in options
        )
        return f'<div class="mhnb-choices" role="radiogroup" aria-label="{escape(label)}">{buttons}</div>'

    def button(self, name: str, label: str) -> str:
        """Draw a button."""
        return f'<button type="button" id="{self._uid}-{name}" data-field="{name}">{escape(label)}</button>'

    def row(self, names: Sequence[str], *controls: str) -> str:
        """Draw controls side by side, above the reasons of some names."""
        reasons = "".join(
            f'<div class="mhnb-bad" id="{self._uid}-{name}-reason">✗ {escape(self._refused[name].reason, quote=False)}</div>'
            for name in names
            if name in self._refused
        )
        return f'<div class="mhnb-fields">{"".join(controls)}</div>{reasons}'

    def _attributes(self, name: str, reason_of: str) -> str:
        refused = f' aria-invalid="true" aria-describedby="{self._uid}-{reason_of}-reason"'
        return f'id="{self._uid}-{name}" data-field="{name}"{refused * (reason_of in self._refused)}'

    def _label(self, name: str, label: str, control: str) -> str:
        words = f'<label for="{self._uid}-{name}">{escape(label)}</label>'
        return f'<div class="mhnb-field">{words}{control}</div>'


def draw_group(legend: str, controls: str, drawing: str) -> str:
    """Draw controls below a legend, beside a drawing."""
    beside = f'<div class="mhnb-beside"><div>{controls}</div><div>{drawing}</div></div>'
    return f"<fieldset><legend>{escape(legend)}</legend>{beside}</fieldset>"


def draw_section(html: str) -> str:
    """Draw a part of the form below a line."""
    return f'<div class="mhnb-section">{html}</div>'

"""Prediction question with buttons, and the same question as text.

No widget stays in a saved notebook: the buttons are replaced by text on a click or when the next cell runs.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from mhnb.teach.exercise import Prediction

__all__ = ["format_question", "show_question"]

StoreGuess = Callable[[Prediction, Any], str]
"""Stores a guess and returns the feedback."""

# No <pre>: JupyterLab breaks its lines within words.
_MONO = "font-family:monospace;white-space:pre-wrap"


def format_question(prediction: Prediction) -> str:
    """Format the question, its choices, and the call to type.

    >>> print(format_question(Prediction("n", "02", "How many?", (2, 8), "")))
    How many?
      2
      8
    Click one, or type it: mhnb.teach.predict('n', 2)
    """
    lines = [prediction.prompt, *(f"  {choice!r}" for choice in prediction.choices)]
    return "\n".join(
        [*lines, f"Click one, or type it: mhnb.teach.predict({prediction.name!r}, {prediction.choices[0]!r})"]
    )


def show_question(prediction: Prediction, store_guess: StoreGuess) -> None:
    """Show the question with buttons; in a script, which has no buttons, print it as text."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        print(format_question(prediction))
        return
    _show_buttons(shell, prediction, store_guess)


def _show_buttons(shell: Any, prediction: Prediction, store_guess: StoreGuess) -> None:
    import ipywidgets as widgets  # type: ignore[import-untyped]  # it has no types
    from IPython.display import display

    question = format_question(prediction)
    buttons = [widgets.Button(description=repr(choice)) for choice in prediction.choices]
    box = widgets.VBox([widgets.Label(prediction.prompt), widgets.HBox(buttons)])
    # One mimebundle, so that a front end without widgets shows the text.
    bundle: dict[str, Any] = {**box._repr_mimebundle_(), "text/plain": question}
    handle = display(bundle, raw=True, display_id=True)

    def replace_buttons(text: str) -> None:
        """Replace the buttons by text, once."""
        if replace_on_next_cell in shell.events.callbacks["pre_run_cell"]:
            shell.events.unregister("pre_run_cell", replace_on_next_cell)
            plain = {"text/plain": text, "text/html": f'<div style="{_MONO}">{html.escape(text)}</div>'}
            handle.update(plain, raw=True)
            for widget in (*buttons, box):
                widget.close()

    def replace_on_next_cell(*_: Any) -> None:
        replace_buttons(question)

    for button, choice in zip(buttons, prediction.choices, strict=True):
        button.on_click(
            lambda _, choice=choice: replace_buttons(f"{prediction.prompt}\n{store_guess(prediction, choice)}")
        )
    shell.events.register("pre_run_cell", replace_on_next_cell)

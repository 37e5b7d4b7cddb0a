"""`predict` and `reveal`: store a guess before the ranks run, and compare it with their result.

A wrong guess does not raise, because it is part of the lesson and Run All must continue. The question is shown with buttons and
as text. No widget stays in a saved notebook: the buttons are replaced by text on a click or when the next cell runs.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any, cast

from mhnb.errors import InvalidRequest
from mhnb.teach.check import current_process
from mhnb.teach.exercise import Prediction, find_task, is_correct_guess
from mhnb.teach.progress import AnswerRecord, read_records, try_write_record

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


# -- `predict` and `reveal`


def predict(name: str, answer: Any = ...) -> None:
    """Store your guess. Without one, show the question with buttons, or as text if there are no buttons.

    Raises:
        InvalidRequest: the prediction does not exist, the guess is not one of its choices, or the cell ran on the ranks.
    """
    prediction = _find_prediction(name)
    if answer is ...:
        show_question(prediction, _store_guess)
    else:
        print(_store_guess(prediction, answer))


def reveal(name: str, truth: Any) -> None:
    """Show your guess beside the value from the ranks, and explain the value.

    Args:
        name: name of the prediction.
        truth: the value that `%mhjax pull` returned; with `--each` a list by rank, compared rank by rank.

    Raises:
        InvalidRequest: the prediction does not exist, or the cell ran on the ranks.
    """
    prediction = _find_prediction(name)
    feedback, is_correct = _compare_with_truth(prediction, truth)
    print(feedback)
    stored = _stored_guess(prediction.name)
    if stored is not None and (
        failed := try_write_record(name, AnswerRecord(None, 1, is_correct, feedback.splitlines()[0], stored.answer))
    ):
        print(failed)


def _find_prediction(name: str) -> Prediction:
    prediction = cast(Prediction, find_task(name, Prediction))
    if current_process().rank is not None:
        raise InvalidRequest(f"{name} is asked in the notebook: take %%mhjax off this cell")
    return prediction


def _store_guess(prediction: Prediction, answer: Any) -> str:
    """Store a guess and return the feedback, which does not reveal whether the guess is correct."""
    matching = [index for index, choice in enumerate(prediction.choices) if is_correct_guess(answer, choice)]
    if not matching:
        raise InvalidRequest(
            f"{prediction.name}: {answer!r} is not among the choices; choose one of {format_choices(prediction)}"
        )
    if failed := try_write_record(
        prediction.name, AnswerRecord(None, 1, None, "", repr(prediction.choices[matching[0]]))
    ):
        return failed
    return f"kept · {prediction.name}: {prediction.choices[matching[0]]!r}\nRun the next cells to see."


def format_choices(prediction: Prediction) -> str:
    """Format the choices as they are typed."""
    return ", ".join(repr(choice) for choice in prediction.choices)


def _stored_guess(name: str) -> AnswerRecord | None:
    return next((record for record in read_records(name) if record.rank is None), None)


def _compare_with_truth(prediction: Prediction, truth: Any) -> tuple[str, bool]:
    stored = _stored_guess(prediction.name)
    if stored is None:
        return f"no prediction was made; it is {_format_value(truth)}.\n{prediction.explanation}", False
    guess = next((each for each in prediction.choices if repr(each) == stored.answer), stored.answer)
    if is_correct_guess(guess, truth):
        return f"you said {guess!r}, and so it is.\n{prediction.explanation}", True
    return f"you said {guess!r}; it is {_format_value(truth)}.\n{prediction.explanation}", False


def _format_value(truth: Any) -> str:
    return repr(truth.tolist() if hasattr(truth, "tolist") else truth)

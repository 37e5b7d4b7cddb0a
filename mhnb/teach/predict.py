"""`predict` stores a guess; `reveal` compares it with the ranks' result.

A guess can be changed until it is revealed, and is fixed then. A wrong guess does not raise, because it is part of the lesson and
Run All must continue. The question is shown with buttons and as text. No widget stays in a saved notebook: the buttons are replaced
by text on a click or when the next cell runs. Running the cell again shows them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from mhnb.errors import InvalidRequest
from mhnb.teach.check import current_process
from mhnb.teach.exercise import Prediction, find_task, is_correct_guess, lesson_of
from mhnb.teach.progress import AnswerRecord, read_lesson_state, read_records, try_write_record
from mhnb.view.document import CardTone, Document
from mhnb.view.live.screen import print_both, show_document
from mhnb.view.reports.lesson import MISSED_SIGN, RIGHT_SIGN, build_bar, build_prediction

StoreGuess = Callable[[Prediction, Any], Document]
"""Stores a guess and returns the feedback."""


def _add_bar(prediction: Prediction, card: Document) -> Document:
    return [*card, *build_bar(read_lesson_state(lesson_of(prediction)))]


def format_question(prediction: Prediction) -> str:
    """Format the question, its choices, and the call to type.

    >>> print(format_question(Prediction("n", "How many?", (2, 8), "")))
    How many?
      2
      8
    Click one, or type it: mhnb.teach.predict('n', 2)
    """
    lines = [prediction.prompt, *(f"  {choice!r}" for choice in prediction.choices)]
    return "\n".join([*lines, f"Click one, or type it: {_format_call(prediction, prediction.choices[0])}"])


def _format_call(prediction: Prediction, choice: Any) -> str:
    return f"mhnb.teach.predict({prediction.name!r}, {choice!r})"


def _question_card(prediction: Prediction, guess: AnswerRecord | None) -> Document:
    """Return the card without buttons: the choices, or the guess made."""
    if guess is not None:
        return _kept_card(prediction, guess.answer)
    rows = [("choices", format_choices(prediction))]
    how = f"Run this cell to click one, or type it: {_format_call(prediction, prediction.choices[0])}"
    return build_prediction("open", f"predict · {prediction.prompt}", rows, how, text=format_question(prediction))


def _kept_card(prediction: Prediction, answer: str) -> Document:
    """Return a guess that is not revealed yet, without a judgement."""
    how = "Run the next cells to see the answer. Until then you can change your guess: run this cell again."
    text = f"{prediction.prompt}\nsaved · {prediction.name}: {answer}\n{how}"
    card = build_prediction("open", f"predict · {prediction.prompt}", [("you said", answer)], how, text=text)
    return _add_bar(prediction, card)


def _fixed_card(prediction: Prediction, guess: AnswerRecord) -> Document:
    """Return a guess that was revealed."""
    how = f"The answer was revealed, so this guess is final. To answer again: mhnb.teach.reset({prediction.name!r})"
    tone, sign = _tone_of(is_right=guess.right is True)
    text = f"{prediction.prompt}\n{sign} {guess.said}\n{how}"
    card = build_prediction(tone, f"{sign} {prediction.prompt}", [("revealed", guess.said)], how, text=text)
    return _add_bar(prediction, card)


def _tone_of(*, is_right: bool) -> tuple[CardTone, str]:
    # A wrong prediction is part of the lesson, and not a fault to fix.
    return ("right", RIGHT_SIGN) if is_right else ("open", MISSED_SIGN)


def show_question(prediction: Prediction, store_guess: StoreGuess) -> None:
    """Show the question with buttons, or as text in a script."""
    from IPython.core.getipython import get_ipython

    guess = _stored_guess(prediction.name)
    if guess is not None and guess.right is not None:
        show_document(_fixed_card(prediction, guess))
        return
    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        print(format_question(prediction))
        return
    _show_buttons(shell, prediction, guess, store_guess)


def _show_buttons(shell: Any, prediction: Prediction, guess: AnswerRecord | None, store_guess: StoreGuess) -> None:
    import ipywidgets as widgets  # type: ignore[import-untyped]  # it has no types
    from IPython.display import display

    question = print_both(_question_card(prediction, guess))
    said = guess.answer if guess is not None else None
    buttons = [
        widgets.Button(
            description=str(choice), icon="check" if repr(choice) == said else "", layout=widgets.Layout(width="auto")
        )
        for choice in prediction.choices
    ]
    label = prediction.prompt if said is None else f"{prediction.prompt} You said {said}; click to change it."
    box = widgets.VBox([widgets.Label(label), widgets.HBox(buttons)])
    # One mimebundle, so that a front end without widgets shows the text.
    bundle: dict[str, Any] = {**box._repr_mimebundle_(), "text/plain": question["text/plain"]}
    handle = display(bundle, raw=True, display_id=True)

    def replace_buttons(card: Mapping[str, str]) -> None:
        """Replace the buttons by text, once."""
        if replace_on_next_cell in shell.events.callbacks["pre_run_cell"]:
            shell.events.unregister("pre_run_cell", replace_on_next_cell)
            handle.update(card, raw=True)
            for widget in (*buttons, box):
                widget.close()

    def replace_on_next_cell(*_: Any) -> None:
        replace_buttons(question)

    for button, choice in zip(buttons, prediction.choices, strict=True):
        button.on_click(lambda _, choice=choice: replace_buttons(print_both(store_guess(prediction, choice))))
    shell.events.register("pre_run_cell", replace_on_next_cell)


# -- `predict` and `reveal`


def predict(name: str, answer: Any = ...) -> None:
    """Store your guess; without one, show the question.

    Until the guess is revealed, another one replaces it. After that it stays; `reset` forgets it.

    Raises:
        InvalidRequest: the prediction does not exist, the guess is not one of its choices, or the cell ran on the ranks.
    """
    prediction = _find_prediction(name)
    if answer is ...:
        show_question(prediction, _store_guess)
    else:
        show_document(_store_guess(prediction, answer))


def reveal(name: str, truth: Any) -> None:
    """Show your guess beside the ranks' value, and explain the value.

    Args:
        name: name of the prediction.
        truth: the value that `%mhjax pull` returned; with `--each` a list by rank, compared rank by rank.

    Raises:
        InvalidRequest: the prediction does not exist, or the cell ran on the ranks.
    """
    prediction = _find_prediction(name)
    stored = _stored_guess(prediction.name)
    if stored is None:
        _show_without_guess(prediction, _format_value(truth))
        return
    guess = next((each for each in prediction.choices if repr(each) == stored.answer), stored.answer)
    is_correct = is_correct_guess(guess, truth)
    said = (
        f"you said {guess!r}, which is right." if is_correct else f"you said {guess!r}; it is {_format_value(truth)}."
    )
    failed = try_write_record(prediction.name, AnswerRecord(None, 1, is_correct, said, stored.answer))
    tone, sign = _tone_of(is_right=is_correct)
    head = f"{sign} {'as predicted' if is_correct else 'not as predicted'} · {prediction.name}"
    rows = [("you said", repr(guess)), ("it is", _format_value(truth))]
    text = f"{sign} {said}\n{prediction.explanation}"
    card = build_prediction(tone, head, rows, prediction.explanation, text=text)
    show_document(_add_bar(prediction, card))
    if failed:
        print(failed)


def _show_without_guess(prediction: Prediction, value: str) -> None:
    """Show that no guess was made, with the value folded."""
    again = "Answer the question above, then run this cell again."
    text = f"no prediction was made; it is {value}.\n{prediction.explanation}"
    head, truth = f"no prediction was made · {prediction.name}", f"it is {value}. {prediction.explanation}"
    show_document(_add_bar(prediction, build_prediction("open", head, [], again, text=text, fold=truth)))


def _find_prediction(name: str) -> Prediction:
    prediction = cast(Prediction, find_task(name, Prediction))
    if current_process().rank is not None:
        raise InvalidRequest(
            f"{name} is a question for the notebook, but this cell ran on the ranks\n  Fix: remove %%mhjax from this cell"
        )
    return prediction


def _store_guess(prediction: Prediction, answer: Any) -> Document:
    """Store a guess; the feedback does not reveal whether it is correct."""
    matching = [index for index, choice in enumerate(prediction.choices) if is_correct_guess(answer, choice)]
    if not matching:
        raise InvalidRequest(f"{prediction.name}: expected one of {format_choices(prediction)}; got {answer!r}")
    stored, said = _stored_guess(prediction.name), repr(prediction.choices[matching[0]])
    if stored is not None and stored.right is not None:
        return _fixed_card(prediction, stored)
    if failed := try_write_record(prediction.name, AnswerRecord(None, 1, None, "", said)):
        return build_prediction("open", failed, [], text=failed)
    return _kept_card(prediction, said)


def format_choices(prediction: Prediction) -> str:
    """Format the choices as they are typed."""
    return ", ".join(repr(choice) for choice in prediction.choices)


def _stored_guess(name: str) -> AnswerRecord | None:
    return next((record for record in read_records(name) if record.rank is None), None)


def _format_value(truth: Any) -> str:
    return repr(truth.tolist() if hasattr(truth, "tolist") else truth)

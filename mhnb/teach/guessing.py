"""`predict` and `reveal`: store a guess before the ranks run, and compare it with their result.

A wrong guess does not raise, because it is part of the lesson and Run All must continue.
"""

from __future__ import annotations

from typing import Any, cast

from mhnb.errors import InvalidRequest
from mhnb.teach.ask import ask_with_buttons
from mhnb.teach.checking import find_here
from mhnb.teach.exercise import Prediction, compare_guess
from mhnb.teach.keep import Record, read_records, try_keep
from mhnb.teach.registry import find

__all__ = ["predict", "reveal"]


def predict(name: str, answer: Any = ...) -> None:
    """Store your guess. Without one, show the question with buttons, or as text if there are no buttons.

    Raises:
        InvalidRequest: the prediction does not exist, the guess is not one of its choices, or the cell ran on the ranks.
    """
    prediction = _find(name)
    if answer is ...:
        ask_with_buttons(prediction, _keep_guess)
    else:
        print(_keep_guess(prediction, answer))


def reveal(name: str, truth: Any) -> None:
    """Show your guess beside the value from the ranks, and explain the value.

    Args:
        name: name of the prediction.
        truth: the value that `%mhjax pull` returned; with `--each` a list by rank, compared rank by rank.

    Raises:
        InvalidRequest: the prediction does not exist, or the cell ran on the ranks.
    """
    prediction = _find(name)
    said, right = _compare(prediction, truth)
    print(said)
    kept = _kept(prediction.name)
    if kept is not None and (failed := try_keep(name, Record(None, 1, right, said.splitlines()[0], kept.answer))):
        print(failed)


def _find(name: str) -> Prediction:
    prediction = cast(Prediction, find(name, Prediction))
    if find_here().rank is not None:
        raise InvalidRequest(f"{name} is asked in the notebook: take %%mhjax off this cell")
    return prediction


def _keep_guess(prediction: Prediction, answer: Any) -> str:
    """Store a guess and return the feedback, which does not reveal whether the guess is correct."""
    fitting = [index for index, choice in enumerate(prediction.choices) if compare_guess(answer, choice)]
    if not fitting:
        raise InvalidRequest(
            f"{prediction.name}: {answer!r} is not among the choices; choose one of {format_choices(prediction)}"
        )
    if failed := try_keep(prediction.name, Record(None, 1, None, "", repr(prediction.choices[fitting[0]]))):
        return failed
    return f"kept · {prediction.name}: {prediction.choices[fitting[0]]!r}\nRun the next cells to see."


def format_choices(prediction: Prediction) -> str:
    """Format the choices as they are typed."""
    return ", ".join(repr(choice) for choice in prediction.choices)


def _kept(name: str) -> Record | None:
    return next((record for record in read_records(name) if record.rank is None), None)


def _compare(prediction: Prediction, truth: Any) -> tuple[str, bool]:
    kept = _kept(prediction.name)
    if kept is None:
        return f"no prediction was made; it is {_show(truth)}.\n{prediction.because}", False
    guess = next((each for each in prediction.choices if repr(each) == kept.answer), kept.answer)
    if compare_guess(guess, truth):
        return f"you said {guess!r}, and so it is.\n{prediction.because}", True
    return f"you said {guess!r}; it is {_show(truth)}.\n{prediction.because}", False


def _show(truth: Any) -> str:
    return repr(truth.tolist() if hasattr(truth, "tolist") else truth)

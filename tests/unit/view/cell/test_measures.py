"""Numbers that name something are no measures."""

from __future__ import annotations

import pytest

from mhnb.view.cell.measures import is_counter, is_label, is_step, name_field


@pytest.mark.parametrize(
    ("before", "values", "after"),
    [
        ("pid ", ("4711", "4718"), ""),
        ("local_device=", ("3", "1"), ","),
        ("listens on port ", ("8476", "8477"), ""),
        ("gpu", ("0", "1"), " busy"),
        ("at node-", ("12", "7"), ""),
        (":", ("8476", "8477"), ""),
        ("commit ", ("3", "9"), "f9a2"),
        ("made ", ("140231", "138872", "151002"), ""),
    ],
)
def test_names_of_things_are_labels(before: str, values: tuple[str, ...], after: str) -> None:
    """A word for a name, a place inside a word or an address, and large numbers of which no two are equal are labels."""
    assert is_label(before, values, after)


@pytest.mark.parametrize(
    ("before", "values", "after"),
    [
        ("loss ", ("0.3", "0.7"), ""),
        ("correct ", ("93", "88"), " of 100"),
        ("gpu memory ", ("31", "28"), " MiB"),
        ("cpu ", ("55", "48"), "%"),
        ("peak ", ("1234567", "1234890"), " bytes"),
        ("device ", ("0.5", "0.7"), ""),
        ("tokens ", ("10240", "10240"), ""),
    ],
)
def test_measures_are_not_labels(before: str, values: tuple[str, ...], after: str) -> None:
    """Numbers with a point, a percentage or a unit, and numbers that some ranks share, are measures."""
    assert not is_label(before, values, after)


def test_counters_and_steps() -> None:
    """A counter that starts again with each epoch still counts; only one with the name of a step is a loop's."""
    assert is_counter([str(at % 20) for at in range(40)])
    assert not is_counter(["1", "3", "4", "9"])
    assert not is_counter(["0.1", "0.2", "0.3"])
    assert is_step("  global_step=", ["10", "20", "30"])
    assert not is_step("layer ", ["0", "1", "2"])


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [("step 3 loss ", "", "loss"), (", 'lr': ", "}", "lr"), (" train/loss=", "", "train/loss"), (": ", "", "")],
)
def test_field_is_named_by_the_words_before_it(before: str, after: str, name: str) -> None:
    """The name is without the punctuation around it."""
    assert name_field(before.removeprefix("step 3"), after) == name

"""The lessons by number: file, title, exercise headings in notebook order.

`check` numbers an exercise by its place here, and the bar of a lesson links to its heading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lesson:
    """A notebook of the course."""

    number: str
    """As `03`."""
    file: str
    title: str
    headings: Mapping[str, str]
    """By exercise: the heading above it, after `Exercise: `."""

    def number_of(self, exercise: str) -> str:
        """Return an exercise's number, as `03.1`."""
        return f"{self.number}.{list(self.headings).index(exercise) + 1}"

    def anchor_of(self, exercise: str) -> str:
        """Return the link to an exercise's heading in JupyterLab and nbconvert."""
        return "#" + f"Exercise: {self.headings[exercise]}".replace(" ", "-")


LESSONS: Mapping[str, Lesson] = {
    lesson.number: lesson
    for lesson in (
        Lesson(
            "01",
            "01_many_pythons.ipynb",
            "One notebook, many Pythons",
            {
                "my_label": "a label for each rank",
                "log_once": "one rank logs",
                "pull_each": "gather the labels",
            },
        ),
        Lesson(
            "02",
            "02_devices.ipynb",
            "Local and global devices",
            {
                "n_devices_in_mesh": "count with one number",
                "my_positions": "your positions in the list",
                "owner_of": "whose device is it?",
            },
        ),
        Lesson(
            "03",
            "03_meshes.ipynb",
            "Meshes and PartitionSpecs",
            {
                "columns_apart": "a column for each device",
                "pairs_inside": "pairs inside a host",
                "shard_shape": "the shape of a shard, by hand",
            },
        ),
        Lesson(
            "04",
            "04_arrays.ipynb",
            "Making global arrays",
            {
                "from_callback": "from a callback",
                "from_local_columns": "from each rank's column",
                "from_single_devices": "device by device",
                "all_of_it": "replicated everywhere",
                "fits": "it must fit",
            },
        ),
        Lesson(
            "05",
            "05_loading.ipynb",
            "Loading data",
            {
                "my_share": "equal shares",
                "global_batch": "a batch from all ranks",
                "steps_for_all": "how many steps?",
            },
        ),
        Lesson(
            "06",
            "06_order.ipynb",
            "Same program, same order",
            {
                "in_order": "one order for all",
                "keys_apart": "two keys",
                "agreed_start": "agree with rank 0",
            },
        ),
        Lesson(
            "07",
            "07_deadlock.ipynb",
            "The deadlock lab",
            {
                "log_from_one": "report from one rank",
                "any_rank": "stop together",
                "pad_last": "pad the last batch",
            },
        ),
        Lesson(
            "08",
            "08_collectives.ipynb",
            "Reading collectives, on a communication budget",
            {
                "variance_in_one": "the variance, in one message",
                "stay_inside": "stay inside the host",
            },
        ),
        Lesson(
            "09",
            "09_explicit.ipynb",
            "Explicit sharding",
            {
                "add_typed": "give the sharding of the result",
                "dot_typed": "the cheap product",
            },
        ),
        Lesson(
            "10",
            "10_by_hand.ipynb",
            "Collectives by hand",
            {
                "centered": "the mean, by hand",
                "ring_gather": "an all-gather in a ring",
                "own_share": "a sum that stays sharded",
            },
        ),
        Lesson(
            "11",
            "11_training.ipynb",
            "Training and checkpoints",
            {
                "fixed_step": "the handbook's step, fixed",
                "accumulate_once": "accumulate, then send once",
                "split_params": "no device holds it all",
            },
        ),
        Lesson(
            "12",
            "12_death.ipynb",
            "When a rank dies",
            {
                "each_piece_once": "each shard once",
                "read_own": "read no more than you need",
                "common_step": "the latest step that all ranks have",
            },
        ),
        Lesson(
            "13",
            "13_srun.ipynb",
            "From notebook to srun",
            {
                "can_leave": "a cell that can be exported",
                "from_environment": "arguments from the environment",
            },
        ),
    )
}
"""By number."""

"""Answers of the lesson devices."""

from tests.integration.lessons.book import Answer
from tests.integration.lessons.figures.l02 import list_all_ids, list_local_ids

_COUNT = (
    "%%mhjax\ndef n_devices_in_mesh(dummy):\n    return {}\nmhnb.teach.check('n_devices_in_mesh', n_devices_in_mesh)"
)
_PLACES = "%%mhjax\nimport numpy as np\npositions = {}\nmhnb.teach.check('my_positions', positions)"
_OWNER = "%%mhjax\ndef owner(position):\n    return {}\nmhnb.teach.check('owner_of', owner)"
_NUMPY_POSITION = "np.flatnonzero([each == device for each in jax.devices()])[0]"

ANSWERS = {
    "n_devices_in_mesh": Answer(
        [
            (_COUNT.format("jax.device_count()"), "returns int, expected a float32 scalar, shape ()"),
            (_COUNT.format("jnp.int32(jax.device_count())"), "returns int32[], expected a float32 scalar"),
            (_COUNT.format("jnp.float32([jax.device_count()])"), "returns float32[1], expected a float32 scalar"),
            (_COUNT.format("jnp.float32(jax.process_count())"), "That is the number of processes"),
            (_COUNT.format("jnp.float32(16)"), "returns 16.0, expected 8.0"),
            (
                _COUNT.format("jnp.float32(8)").replace("%%mhjax", "import jax.numpy as jnp"),
                "returns 8.0, expected 1.0",
            ),
        ],
    ),
    "my_positions": Answer(
        [
            (_PLACES.format("[device.id for device in jax.local_devices()]"), "A device's id is not its position"),
            (_PLACES.format("jax.local_devices()"), "expected integers"),
            (_PLACES.format("tuple(range(8))"), "positions is a tuple, expected a list of integers"),
            (_PLACES.format("list(range(8))"), "These are the positions of all devices"),
            (_PLACES.format("[0, 1]"), "positions is [0, 1], expected [6, 7]"),
            (_PLACES.format("[jax.process_index(), jax.process_index() + 4]"), "positions is [3, 7], expected [6, 7]"),
        ],
        also_right=[
            _PLACES.format(f"[{_NUMPY_POSITION} for device in jax.local_devices()]"),
            _PLACES.format("[jax.devices().index(device) for device in jax.local_devices()][::-1]"),
        ],
    ),
    "owner_of": Answer(
        [
            (_OWNER.format("jax.process_index()"), "not on the rank that asks"),
            (_OWNER.format("position % 4"), "owner(1) is 1, expected 0"),
            (_OWNER.format("jax.devices()[position].id"), "owner(1) is 1, expected 0"),
            (_OWNER.format("position / 2"), "(float, not int)"),
        ],
        also_right=[_OWNER.format("np.array([device.process_index for device in jax.devices()])[position]")],
    ),
}

SAID = {
    ("devices", "arguments"): ["coordinator_address = None", "initialization_timeout = 300"],
    ("devices", "pasted"): ["nothing to do; ignored: coordinator_address='127.0.0.1:1'"],
    ("devices", "twice"): ["with num_processes=4, and this call has num_processes=8"],
    ("devices", "alone"): ["coordinator_address should be defined"],
    ("devices", "initialize"): ["initialized: True", *(f"process {rank} of 4" for rank in range(4))],
    ("devices", "ex-n_devices_in_mesh"): ["it returns 2.0", "That is the number of this rank's own devices"],
    ("devices", "list"): [
        "driven by: [0, 0, 1, 1, 2, 2, 3, 3]",
        f"ids: {list_all_ids()}",
        *(f"local ids: {list_local_ids(rank)}" for rank in range(4)),
    ],
}

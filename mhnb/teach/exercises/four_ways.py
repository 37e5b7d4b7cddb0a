"""Exercises of the lesson: four ways to shard one block.

The block is not the lesson's: its MLP has a gate, and four query heads share a head of keys and values. So the specs have to be
thought out anew. Specs are graded from shapes: nothing is launched, because they decide where a value is and not what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mhnb.sharding.report import Collective
from mhnb.teach.check import Budget, call_answer, check_budget, format_usage, measure, name_kind
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer

_D, _GROUPS, _QUERIES, _HEAD, _F = 64, 2, 4, 8, 256
_X = (16, 16, _D)
"""Sequences, tokens of a sequence, features."""
_SHAPES = {
    "q": (_D, _GROUPS, _QUERIES, _HEAD),
    "k": (_D, _GROUPS, _HEAD),
    "v": (_D, _GROUPS, _HEAD),
    "out": (_GROUPS, _QUERIES, _HEAD, _D),
    "gate": (_D, _F),
    "up": (_D, _F),
    "down": (_F, _D),
}
_NBYTES = 4 * sum(int(np.prod(shape)) for shape in _SHAPES.values())
_BOTH = ("data", "model")
_Params = Mapping[str, Any]


def _block(p: _Params, x: Any) -> Any:
    """Compute the block, for the compiler to shard."""
    import jax
    import jax.numpy as jnp

    h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
    q = jnp.einsum("bsd,dgrk->bsgrk", h, p["q"])
    k, v = jnp.einsum("bsd,dgk->bsgk", h, p["k"]), jnp.einsum("bsd,dgk->bsgk", h, p["v"])
    weights = jax.nn.softmax(jnp.einsum("bsgrk,btgk->bgrst", q, k) / _HEAD**0.5)
    x = x + jnp.einsum("bsgrk,grkd->bsd", jnp.einsum("bgrst,btgk->bsgrk", weights, v), p["out"])
    h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def _block_in_numpy(p: _Params, x: np.ndarray) -> np.ndarray:
    h = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6)
    q = np.einsum("bsd,dgrk->bsgrk", h, p["q"])
    k, v = np.einsum("bsd,dgk->bsgk", h, p["k"]), np.einsum("bsd,dgk->bsgk", h, p["v"])
    weights = np.exp(np.einsum("bsgrk,btgk->bgrst", q, k) / _HEAD**0.5)
    weights /= weights.sum(-1, keepdims=True)
    x = x + np.einsum("bsgrk,grkd->bsd", np.einsum("bgrst,btgk->bsgrk", weights, v), p["out"])
    h = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6)
    gate = h @ p["gate"]
    result: np.ndarray = x + (gate / (1 + np.exp(-gate)) * (h @ p["up"])) @ p["down"]
    return result


def _mesh(process: ProcessInfo) -> Any:
    """Return the lesson's mesh, with one row per host.

    Raises:
        WrongAnswer: the cluster is another than the lesson's, for which the budgets are computed.
    """
    import jax

    sizes = process.process_count, process.local_device_count
    if sizes != (4, 2):
        raise WrongAnswer("the cluster has {} processes with {} devices each".format(*sizes), expected="4 with 2 each")
    return jax.sharding.Mesh(np.array(jax.devices()).reshape(sizes), _BOTH)


def _values() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the parameters and the input, the same on each rank."""
    rng = np.random.default_rng(17)
    params = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in _SHAPES.items()}
    return params, rng.normal(size=_X).astype(np.float32)


def _place(mesh: Any, values: np.ndarray, spec: Any) -> Any:
    import jax

    return jax.make_array_from_callback(values.shape, jax.sharding.NamedSharding(mesh, spec), values.__getitem__)


# -- specs of all parameters


def _fsdp_specs(process: ProcessInfo, specs: Any) -> str:
    import jax

    whole = jax.sharding.PartitionSpec(_BOTH)
    budget = Budget({"all-gather": 2 * len(_SHAPES)}, nbytes_per_device=_NBYTES // 8)
    return _grade_specs(_mesh(process), specs, whole, 8, lambda *args: check_budget(budget, _block, *args))


def _tp_specs(process: ProcessInfo, specs: Any) -> str:
    import jax

    partial = _activation_nbytes()
    budget = Budget({"all-reduce": 2}, nbytes_per_device=2 * partial, nbytes_across_hosts=0)
    rows = jax.sharding.PartitionSpec("data")
    return _grade_specs(_mesh(process), specs, rows, 2, lambda *args: check_budget(budget, _block, *args))


def _fsdp_tp_specs(process: ProcessInfo, specs: Any) -> str:
    import jax

    budget = Budget({"all-gather": 2 * len(_SHAPES), "all-reduce": 2})
    # In rings: half of the parameters is gathered over 4 devices, and two partial sums are added over 2.
    most = _NBYTES // 2 * 3 // 4 + 2 * _activation_nbytes()

    def check(*args: Any) -> str:
        usage = measure(_block, *args)
        usage_text = check_budget(budget, _block, measure=lambda *_: usage)
        sent = sum(each.times * each.ring_nbytes_per_device for each in usage)
        if sent > most:
            raise WrongAnswer(
                f"a device sends {sent} bytes in rings", expected=f"at most {most}", note=f"It runs {usage_text}"
            )
        return f"{usage_text}, {sent} bytes in rings"

    return _grade_specs(_mesh(process), specs, jax.sharding.PartitionSpec("data"), 8, check)


def _activation_nbytes() -> int:
    """Return the bytes of x on a device, sharded over data."""
    return 4 * int(np.prod(_X)) // 4


def _grade_specs(mesh: Any, specs: Any, x_spec: Any, share: int, check: Callable[..., str]) -> str:
    """Check the parameters' memory, then the block's communication."""
    _check_names(specs)
    held = sum(_shard_nbytes(mesh, name, shape, specs[name]) for name, shape in _SHAPES.items())
    if held > _NBYTES // share:
        raise WrongAnswer(
            f"a device holds {held} bytes of the parameters",
            expected=f"at most {_NBYTES // share}, {'half' if share == 2 else 'an eighth'} of {_NBYTES}",
        )
    usage_text = check(
        {name: _shape(mesh, shape, specs[name]) for name, shape in _SHAPES.items()}, _shape(mesh, _X, x_spec)
    )
    return f"a device holds {held} of {_NBYTES} bytes; the block runs {usage_text}"


def _shape(mesh: Any, shape: tuple[int, ...], spec: Any) -> Any:
    import jax

    return jax.ShapeDtypeStruct(shape, np.float32, sharding=jax.sharding.NamedSharding(mesh, spec))


def _check_names(specs: Any) -> None:
    if not isinstance(specs, Mapping):
        raise WrongAnswer(f"the specs are a {type(specs).__name__}", expected="a dict with a spec for each parameter")
    missing, more = [name for name in _SHAPES if name not in specs], [name for name in specs if name not in _SHAPES]
    if missing or more:
        raise WrongAnswer(
            f"the specs lack {', '.join(missing)}" if missing else f"the specs have {', '.join(map(str, more))}",
            expected=f"one for each of {', '.join(_SHAPES)}",
        )


def _shard_nbytes(mesh: Any, name: str, shape: tuple[int, ...], spec: Any) -> int:
    """Return the bytes of a parameter on a device.

    Raises:
        WrongAnswer: the spec does not fit the parameter.
    """
    import jax

    if not isinstance(spec, jax.sharding.PartitionSpec):
        raise WrongAnswer(f"the spec of {name} is a {type(spec).__name__}", expected="a PartitionSpec: P(...)")
    axes = [axis for dim in spec if dim is not None for axis in (dim if isinstance(dim, tuple) else (dim,))]
    if len(set(axes)) < len(axes):
        raise WrongAnswer(f"{spec} of {name} uses a mesh axis twice", expected="each axis at most once in a spec")
    if len(spec) > len(shape):
        raise WrongAnswer(
            f"{spec} has {len(spec)} dims", expected=f"at most {len(shape)}, because {name} has {len(shape)}"
        )
    try:
        return 4 * int(np.prod(jax.sharding.NamedSharding(mesh, spec).shard_shape(shape)))
    except (ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise WrongAnswer(f"{spec} does not fit {name}, float32{list(shape)}: {reason}") from None


# -- a constraint, and names


def _place_constraint(process: ProcessInfo, forward: Any) -> str:
    import jax

    spec: Any = jax.sharding.PartitionSpec
    columns, rows = spec(None, "model"), spec("model")
    mesh, (values, x) = _mesh(process), _values()
    params = {name: _place(mesh, w, rows if name in ("out", "down") else columns) for name, w in values.items()}
    batch = _place(mesh, x, spec("data", "model"))
    program = jax.jit(lambda params, x: call_answer(forward, _block, params, x, what="of block, params and x"))
    compiled = program.lower(params, batch).compile()
    got, wanted = compiled(params, batch), _block_in_numpy(values, x)
    if not isinstance(got, jax.Array):
        raise WrongAnswer(f"forward returns {name_kind(got)}", expected="the array that block returns")
    if got.shape != wanted.shape:
        raise WrongAnswer(f"forward returns an array of shape {got.shape}", expected=f"{wanted.shape}")
    if not all(np.allclose(each.data, wanted[each.index], rtol=1e-3, atol=1e-3) for each in got.addressable_shards):
        raise WrongAnswer("forward returns other values than block(params, x)")
    before, usage = _contributed(measure(_block, params, batch)), measure(compiled)
    most, contributed = before // 2, _contributed(usage)
    usage_text = f"It runs {format_usage(usage)}"
    if contributed > most:
        raise WrongAnswer(f"each device contributes {contributed} bytes", expected=f"at most {most}", note=usage_text)
    return f"{contributed} bytes per device, compared with {before} without a constraint"


def _contributed(usage: Sequence[Collective]) -> int:
    return sum(each.times * each.nbytes_per_device for each in usage)


_WAYS = {"A": "TP", "B": "FSDP", "C": "DP", "D": "FSDP with TP"}
_CLUES = {
    "A": "It never gathers a parameter, but adds activations up in the middle of the block",
    "B": "It gathers all six parameters, and no activation is ever added up",
    "C": "It sends nothing before the gradients are complete",
    "D": "It gathers all six parameters, and it adds activations up as well",
}


def _name_ways(process: ProcessInfo, ways: Any) -> str:
    del process
    if not isinstance(ways, Mapping) or set(ways) != set(_WAYS):
        raise WrongAnswer(f"the answer is {ways!r}", expected=f"a dict with the keys {', '.join(_WAYS)}")
    for program, way in _WAYS.items():
        if ways[program] not in _WAYS.values():
            raise WrongAnswer(f"{program} is {ways[program]!r}", expected=f"one of {', '.join(sorted(_WAYS.values()))}")
        if ways[program] != way:
            raise WrongAnswer(f"{program} is {ways[program]!r}", expected="another way", note=_CLUES[program])
    return "all four ways"


LESSON = Lesson(
    "17_four_ways.ipynb",
    "Four ways to shard one block",
    (
        Prediction(
            "state_kib",
            "The parameters take 96 KiB on each device. How many KiB of Adam's state does a device hold after jax.jit(optimizer.init)?",
            (192, 768, 1536),
            "The zeros depend only on shapes, so the compiled function has no argument whose sharding it could follow. "
            "Each host made all 1536 KiB on one of its devices.",
        ),
        Prediction(
            "sums_per_block",
            "Attention and MLP are both sharded in this way. How many all-reduces does one forward pass run?",
            (0, 2, 4, 6),
            "The products by columns and the heads need none. Each of the two products by rows leaves partial sums, "
            "which one all-reduce adds up.",
        ),
        Exercise(
            "name_ways",
            "name the four programs",
            "Name the way of each program, by the collectives of its gradient: DP, FSDP, TP, or FSDP with TP.",
            _name_ways,
            "easy",
            (
                "A parameter that is gathered was sharded by FSDP.",
                "An activation is added up only if a product was split along the dim that it sums over.",
            ),
        ),
        Exercise(
            "fsdp_specs",
            "a block in eighths",
            "Write the specs of FSDP: an eighth of the parameters on each device, and nothing sent but each parameter, once.",
            _fsdp_specs,
            "medium",
            (
                "Each parameter needs both mesh axes, and a dim that 8 divides.",
                "Put both axes on one dim. On two dims, the compiler gathers in two steps, and the second one sends more.",
                "Every parameter but one has 64 or 256 as its first dim. For that one, look at the last dim.",
            ),
        ),
        Exercise(
            "tp_specs",
            "column, then row",
            "Write the specs of TP: half of the parameters on each device, at most two all-reduces, nothing sent to another host.",
            _tp_specs,
            "medium",
            (
                "Which products come first, and so are sharded by columns, and which come second?",
                "A device computes whole heads, and whole columns of the hidden layer.",
                "gate and up are multiplied element by element, so both are sharded in the same way. out and down come second.",
            ),
        ),
        Exercise(
            "fsdp_tp_specs",
            "both at once",
            "Write the specs of FSDP with TP: an eighth of the parameters per device, at most two all-reduces, few bytes in rings.",
            _fsdp_tp_specs,
            "hard",
            (
                "Begin with the specs of TP, and find a second dim for the other axis.",
                "A parameter that is gathered over all eight devices costs twice as much as one that is gathered over four.",
                "Keep model on heads and hidden columns. The features, of size 64, are free for data.",
            ),
        ),
        Exercise(
            "place_constraint",
            "one constraint",
            "Write forward(block, params, x): the same values as block(params, x), with at most half of the bytes.",
            _place_constraint,
            "hard",
            (
                "x and the parameters use the mesh axis model for different things. Which of the two is cheaper to move?",
                "The parameters have to stay where they are, so x must not use the axis model.",
                "Constrain x before the block, so that a device has whole sequences, and the two devices of a host have the same ones.",
            ),
        ),
    ),
)

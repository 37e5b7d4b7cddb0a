"""Exercises of the lesson: pipeline, ring, experts.

Right values are computed with NumPy, from the definitions of softmax, of a chain of layers and of routing to experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from mhnb.teach.check import Budget, assert_equal, call_answer, check_budget
from mhnb.teach.exercise import Exercise, Lesson, Prediction, ProcessInfo, WrongAnswer

_WIDTH = 16


def _mesh(sizes: tuple[int, ...], *names: str) -> Any:
    """Return all devices with Auto axes, as in the lesson."""
    import jax

    return jax.sharding.Mesh(np.array(jax.devices()).reshape(sizes), names)


def _put(mesh: Any, values: np.ndarray, *spec: Any) -> Any:
    """Return a global array, whose values every process has."""
    import jax

    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)


def _map_over(mesh: Any, body: Any, in_specs: Any, out_specs: Any) -> Any:
    import jax

    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs))


def _is_close(got: Any, wanted: np.ndarray) -> bool:
    return np.shape(got) == wanted.shape and bool(np.allclose(np.asarray(got), wanted, rtol=1e-4, atol=1e-5))


# -- layers


def _bubble(_: ProcessInfo, bubble: Any) -> str:
    for n_batches, n_stages in ((1, 4), (4, 4), (8, 4), (12, 3), (5, 1)):
        n_steps = _count_steps(n_batches, n_stages)
        # In each step every stage has a slot, and each microbatch needs one slot of every stage.
        idle = n_stages * n_steps - n_stages * n_batches
        what = f"bubble({n_batches}, {n_stages})"
        got, wanted = call_answer(bubble, n_batches, n_stages, what="of two integers"), idle / (n_stages * n_steps)
        if not isinstance(got, int | float):
            assert_equal(got, wanted, what)
        if np.isclose(got, 1 - wanted) and not np.isclose(got, wanted):
            raise WrongAnswer(f"{what} is {got:.3f}, the share of slots that are used", expected=f"{wanted:.3f}")
        if not np.isclose(got, wanted):
            note = f"Of {n_stages * n_steps} slots, {idle} are empty"
            raise WrongAnswer(f"{what} is {got:.3f}", expected=f"{wanted:.3f}", note=note)
    return "8 microbatches in 4 stages leave 12 of 44 slots empty, 27 %"


def _count_steps(n_batches: int, n_stages: int) -> int:
    """Count the steps of a schedule by moving each microbatch on."""
    at, waiting, n_steps = [0] * n_stages, n_batches, 0
    while waiting or any(at):
        at = [min(waiting, 1), *at[:-1]]
        waiting -= at[0]
        if any(at):
            n_steps += 1
    return n_steps


def _pipeline(process: ProcessInfo, pipeline: Any) -> str:
    import jax

    n_stages, per_stage, n_batches, rows = process.process_count, process.local_device_count, 6, 2
    mesh, spec = _mesh((n_stages, per_stage), "stage", "data"), cast(Any, jax.sharding.PartitionSpec)
    rng = np.random.default_rng(18)
    weights = (rng.normal(size=(n_stages, _WIDTH, _WIDTH)) / 4).astype(np.float32)
    batches = rng.normal(size=(n_batches, rows * per_stage, _WIDTH)).astype(np.float32)
    call_answer(callable, pipeline, what="of a stage's weights and the microbatches")
    mapped = _map_over(mesh, pipeline, (spec("stage"), spec(None, "data")), spec("stage", "data"))
    arrays = _put(mesh, weights, "stage"), _put(mesh, batches, None, "data")
    shape = tuple(mapped.eval_shape(*arrays).shape)
    on_device = (shape[0] // n_stages, shape[1] // per_stage, *shape[2:])
    if on_device != (n_batches, rows, _WIDTH):
        raise WrongAnswer(
            f"a device returns an array of shape {on_device}",
            expected=f"{(n_batches, rows, _WIDTH)}, as many microbatches as it got",
            note=f"A run has {n_batches + n_stages - 1} steps, and not every step of the last stage has a result",
        )
    whole = jax.sharding.NamedSharding(mesh, spec())
    # The last stage is on one host, and every rank grades its result.
    outputs = np.asarray(jax.jit(lambda stages: stages[-n_batches:], out_shardings=whole)(mapped(*arrays)))
    _compare_microbatches(outputs, weights, batches)
    n_steps = n_batches + n_stages - 1
    budget = Budget({"collective-permute": n_steps}, nbytes_per_device=n_steps * rows * _WIDTH * 4)
    usage = check_budget(budget, mapped, *arrays)
    return f"{n_batches} microbatches in {n_steps} steps: it runs {usage}"


def _compare_microbatches(outputs: np.ndarray, weights: np.ndarray, batches: np.ndarray) -> None:
    """Compare the last stage's outputs with a chain of layers in NumPy."""
    states = [batches]
    for weight in weights:
        states.append(np.tanh(states[-1] @ weight))
    for batch, output in enumerate(outputs):
        others = [other for other in range(len(batches)) if _is_close(output, states[-1][other])]
        if others not in ([], [batch]):
            raise WrongAnswer(
                f"output {batch} of the last stage is microbatch {others[0]}", expected=f"microbatch {batch}"
            )
    for batch, (output, right) in enumerate(zip(outputs, states[-1], strict=True)):
        if not _is_close(output, right):
            raise WrongAnswer(
                f"output {batch} of the last stage begins with {output.flat[0]:.4f}",
                expected=f"{right.flat[0]:.4f}, that of microbatch {batch} after {len(weights)} layers",
            )


# -- the sequence


def _softmax_parts(scores: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return each row's maximum, sum and weighted sum, as defined, in float64."""
    top = scores.max(axis=1)
    weights = np.exp(scores - top[:, None])
    return {"maximum m": top, "sum l": weights.sum(axis=1), "output o": weights @ values}


def _merge(_: ProcessInfo, merge: Any) -> str:
    import jax.numpy as jnp

    rows, keys, width = 4, 8, 3
    rng = np.random.default_rng(18)
    # Scores of up to some hundreds, whose exponentials no float32 can hold, and a maximum that moves up and down.
    scores = [rng.normal(size=(rows, keys)) * 5 + offset for offset in (200, 202, 198, 203)]
    values = [rng.normal(size=(keys, width)) for _ in scores]
    state: Any = (jnp.full(rows, -jnp.inf), jnp.zeros(rows), jnp.zeros((rows, width)))
    for n_blocks in range(1, len(scores) + 1):
        block = (np.float32(scores[n_blocks - 1]), np.float32(values[n_blocks - 1]))
        state = call_answer(merge, state, *map(jnp.asarray, block), what="of a state, scores and values")
        if not isinstance(state, tuple) or len(state) != 3:
            raise WrongAnswer(f"merge returns a {type(state).__name__}", expected="a tuple of three arrays, (m, l, o)")
        wanted = _softmax_parts(np.concatenate(scores[:n_blocks], axis=1), np.concatenate(values[:n_blocks]))
        for (what, right), got in zip(wanted.items(), state, strict=True):
            what_of = f"after block {n_blocks} of 4, the {what}"
            if np.shape(got) != right.shape:
                raise WrongAnswer(f"{what} has shape {np.shape(got)}", expected=f"{right.shape}")
            if not np.allclose(got, right, rtol=1e-3):
                row = int(np.argwhere(~np.isclose(got, right, rtol=1e-3))[0][0])
                mine, other = (np.asarray(each, float)[row].round(3).tolist() for each in (got, right))
                is_divided = right.ndim == 2 and np.allclose(got, right / wanted["sum l"][:, None], rtol=1e-3)
                note = "It is divided by l, which is for the end" if is_divided else ""
                raise WrongAnswer(f"{what_of} of row {row} is {mine}", expected=f"{other}", note=note)
    return "four blocks give the softmax of all 32 keys, although no exponential of a score fits into float32"


def _attend(process: ProcessInfo, attend: Any) -> str:
    import jax

    n, rows = process.device_count, 64
    mesh, spec = _mesh((n,), "seq"), jax.sharding.PartitionSpec("seq")
    rng = np.random.default_rng(18)
    q, k, v = (rng.normal(size=(n * rows, _WIDTH)).astype(np.float32) * 2 for _ in range(3))
    # Eighths, so that float32 holds each score exactly. All are near 100, where an exponential without the maximum is infinite.
    q, k = ((np.round(each * 8) / 8).astype(np.float32) for each in (q, k))
    q[:, 0] = k[:, 0] = 20
    call_answer(callable, attend, what="of a device's queries, keys and values")
    mapped = _map_over(mesh, attend, spec, spec)
    arrays = tuple(_put(mesh, each, "seq") for each in (q, k, v))
    got = mapped(*arrays)
    if got.shape != q.shape:
        raise WrongAnswer(
            f"attend returns {(got.shape[0] // n, *got.shape[1:])} per device", expected=f"{(rows, _WIDTH)}"
        )
    for shard in sorted(got.addressable_shards, key=lambda shard: shard.index[0].start):
        _compare_attention(np.asarray(shard.data), shard.index[0].start // rows, (q, k, v), n)
    block = 2 * rows * _WIDTH * 4
    budget = Budget({"collective-permute": 2 * (n - 1)}, nbytes_per_device=(n - 1) * block)
    usage = check_budget(budget, mapped, *arrays)
    largest = max(_array_sizes(jax.make_jaxpr(mapped)(*arrays).jaxpr))
    limit = rows * rows * 4
    if largest > limit:
        raise WrongAnswer(
            f"a device holds an array of {largest} bytes",
            expected=f"at most {limit}, the scores of one block",
            note=f"All keys have {n * rows * _WIDTH * 4} bytes",
        )
    return f"no device holds an array of more than {limit} bytes; it runs {usage}"


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float = _WIDTH**-0.5) -> np.ndarray:
    parts = _softmax_parts(q.astype(float) @ k.T * scale, v)
    return np.asarray(parts["output o"] / parts["sum l"][:, None])


def _compare_attention(got: np.ndarray, device: int, arrays: tuple[np.ndarray, ...], n: int) -> None:
    """Compare the rows of one device with NumPy, and name usual mistakes."""
    q, keys, values = (np.split(each, n) for each in arrays)
    mine, (k, v) = q[device], arrays[1:]
    wanted = _attention(mine, k, v)
    if _is_close(got, wanted):
        return
    if not np.isfinite(got).all():
        raise WrongAnswer(
            "attend(q, k, v) has results that are not finite",
            expected="finite numbers",
            note="The scores are near 100, and float32 cannot hold the exponential of 89",
        )
    pairs = list(zip(keys, values, strict=True))
    mean = np.mean([_attention(mine, *pair) for pair in pairs], axis=0)
    known = {
        "each device attends to its own keys only": [_attention(mine, *pairs[device])],
        "each row is the mean of one softmax per block": [mean],
        "the scores are not divided by the square root of the width": [_attention(mine, k, v, scale=1)],
        "the results are not divided by l": [_softmax_parts(mine.astype(float) @ k.T / 4, v)["output o"]],
        "the keys travel, and the values stay": [_attention(mine, k, np.tile(values[device], (n, 1)))],
    }
    for other in range(n):
        whose = "its own keys" if other == device else "the keys of another device"
        rest = [np.delete(np.array(each), other, axis=0).reshape(-1, _WIDTH) for each in (keys, values)]
        known.setdefault(f"each device leaves out {whose}", []).append(_attention(mine, *rest))
    for yours, candidates in known.items():
        if any(_is_close(got, rows) for rows in candidates):
            raise WrongAnswer(yours, expected="one softmax over all keys, of q @ k.T / 4")
    row, column = np.argwhere(~np.isclose(got, wanted, rtol=1e-4, atol=1e-5))[0].tolist()
    raise WrongAnswer(
        f"device {device} has {got[row, column]:.4f} at [{row}, {column}] of its result",
        expected=f"{wanted[row, column]:.4f}",
        note="It also needs a right merge",
    )


def _array_sizes(jaxpr: Any, *, is_device: bool = False) -> Iterator[int]:
    """Yield the bytes of each array that shard_map computes on a device."""
    for equation in jaxpr.eqns:
        if is_device:
            yield from (var.aval.size * var.aval.dtype.itemsize for var in equation.outvars)
        for each in equation.params.values():
            inner = getattr(each, "jaxpr", each)
            if hasattr(inner, "eqns"):
                yield from _array_sizes(inner, is_device=is_device or equation.primitive.name == "shard_map")


# -- the experts


def _keep(_: ProcessInfo, keep: Any) -> str:
    import jax.numpy as jnp

    rng = np.random.default_rng(18)
    for capacity in (1, 2, 3):
        experts, gates = rng.integers(0, 4, 12), rng.permutation(12).astype(np.float32) / 16 + 0.25
        wanted = _keep_largest(experts, gates, capacity)
        got = np.asarray(
            call_answer(
                keep, jnp.asarray(experts), jnp.asarray(gates), capacity, what="of experts, gates and the capacity"
            )
        )
        if got.shape != wanted.shape or got.dtype != bool:
            raise WrongAnswer(f"keep returns {got.dtype}{list(got.shape)}", expected=f"bool{list(wanted.shape)}")
        _refuse_kept(got, wanted, experts, gates, capacity)
    return "each expert keeps the tokens with its largest gates, and drops the others"


def _keep_largest(experts: np.ndarray, gates: np.ndarray, capacity: int) -> np.ndarray:
    """Return which tokens are among the largest gates of their expert."""
    return np.array(
        [np.sum((experts == expert) & (gates > gate)) < capacity for expert, gate in zip(experts, gates, strict=True)]
    )


def _refuse_kept(got: np.ndarray, wanted: np.ndarray, experts: np.ndarray, gates: np.ndarray, capacity: int) -> None:
    """Refuse a wrong number of tokens for an expert, or wrong tokens."""
    for expert in range(4):
        of_it = np.flatnonzero(experts == expert)
        kept, right = (of_it[each[of_it]].tolist() for each in (got, wanted))
        gates_text = ", ".join(f"{gates[token]:.2f}" for token in of_it)
        note = f"Its tokens are {of_it.tolist()}, with the gates {gates_text}"
        if len(kept) != len(right):
            raise WrongAnswer(
                f"with capacity {capacity}, expert {expert} keeps {len(kept)} of its {len(of_it)} tokens",
                expected=f"{len(right)}",
                note=note,
            )
        if kept != right:
            raise WrongAnswer(
                f"with capacity {capacity}, expert {expert} keeps the tokens {kept}", expected=f"{right}", note=note
            )


def _experts(process: ProcessInfo, experts: Any) -> str:
    import jax

    n, rows, capacity, width = process.device_count, 8, 2, 4
    mesh, spec = _mesh((n,), "expert"), jax.sharding.PartitionSpec("expert")
    rng = np.random.default_rng(18)
    weights = rng.normal(size=(n, width, width)).astype(np.float32)
    x = rng.normal(size=(n * rows, width)).astype(np.float32)
    # Skewed, so that tokens are dropped.
    chosen = (rng.integers(0, n, n * rows) * rng.integers(0, 2, n * rows)).astype(np.int32)
    call_answer(callable, experts, what="of an expert's weights, tokens and their experts")
    mapped = _map_over(mesh, experts, spec, spec)
    arrays = _put(mesh, weights, "expert"), _put(mesh, x, "expert"), _put(mesh, chosen, "expert")
    got = mapped(*arrays)
    if got.shape != x.shape:
        raise WrongAnswer(f"a device returns {(got.shape[0] // n, *got.shape[1:])}", expected=f"{(rows, width)}")
    _compare_tokens(got, weights, x, chosen, capacity)
    budget = Budget({"all-to-all": 2}, nbytes_per_device=2 * n * capacity * width * 4)
    return f"each token was at its expert and came back; it runs {check_budget(budget, mapped, *arrays)}"


def _compare_tokens(got: Any, weights: np.ndarray, x: np.ndarray, chosen: np.ndarray, capacity: int) -> None:
    """Compare each token of this process with NumPy, and name usual mistakes."""
    for shard in sorted(got.addressable_shards, key=lambda shard: shard.index[0].start):
        start, queues = shard.index[0].start, [0] * len(weights)
        device = start // len(shard.data)
        for row, result in enumerate(np.asarray(shard.data)):
            token, expert = x[start + row], int(chosen[start + row])
            fits, queues[expert] = queues[expert] < capacity, queues[expert] + 1
            wanted = np.tanh(token @ weights[expert]) * fits
            if _is_close(result, wanted):
                continue
            name = f"token {row} of device {device}"
            if not fits:
                raise WrongAnswer(
                    f"{name} was dropped, and its result begins with {result[0]:.4f}",
                    expected="zeros",
                    note=f"{capacity} tokens before it had taken the slots of expert {expert}",
                )
            for other, weight in enumerate(weights):
                if _is_close(result, np.tanh(token @ weight)):
                    raise WrongAnswer(f"{name} went through expert {other}", expected=f"expert {expert}")
            raise WrongAnswer(
                f"the result of {name} begins with {result[0]:.4f}",
                expected=f"{wanted[0]:.4f}, that of expert {expert}",
            )


LESSON = Lesson(
    "18_pipeline.ipynb",
    "Pipeline, ring, experts",
    (
        Prediction(
            "permutes_in_training",
            "The forward pass runs 4 permutes. How many does the program for its gradient run, forward pass included?",
            (4, 5, 8, 16),
            "The gradient of a ppermute is a ppermute with its pairs reversed. So the backward pass is a pipeline, too,"
            " from the last stage to the first.",
        ),
        Exercise(
            "pipeline_bubble",
            "the bubble",
            "Write bubble(n_batches, n_stages): the share of all slots in which a stage has nothing to do.",
            _bubble,
            "easy",
            (
                "Count the steps first: the last microbatch enters after the others have, and then passes all stages.",
                "In each step every stage has one slot. A stage uses as many of its slots as there are microbatches.",
            ),
        ),
        Exercise(
            "pipeline_schedule",
            "the pipeline's schedule",
            "Write pipeline(w, batches): all microbatches through all stages, with one permute in each of M + S - 1 steps.",
            _pipeline,
            "hard",
            (
                "Scan over the steps, as one_batch does. Only what a stage computes on differs: stage 0 takes a new microbatch.",
                "In step t, stage 0 takes microbatch t. After the last one it may take any, because nothing of it arrives in time.",
                "The last stage finishes its first microbatch in step S - 1, so its earlier results are not results.",
            ),
        ),
        Prediction(
            "ring_sends_kib",
            "Keys and values of all devices travel once around the ring. How many KiB does a device send in total?",
            (8, 28, 56, 112),
            "Each device sends 7 messages of 8 KiB, and a gather in a ring sends these, too. The ring saves memory, not bytes.",
        ),
        Exercise(
            "online_softmax",
            "one step of the online softmax",
            "Write merge(state, scores, values): the state (m, l, o) of a softmax after one more block of keys.",
            _merge,
            "medium",
            (
                "Find the new maximum first. Then all that was summed with the old maximum must shrink by one factor per row.",
                "l and o are sums of the same exponentials, so they need the same factor.",
                "For the shapes, give a value per row a second dim before it multiplies a row of o or of the scores.",
            ),
        ),
        Exercise(
            "ring_attention",
            "ring attention",
            "Write attend(q, k, v): attention over all keys, which travel in a ring with n - 1 permutes.",
            _attend,
            "hard",
            (
                "Merge the device's own block before anything is sent. Then it takes 7 times a permute and a merge.",
                "A permute accepts a pair (k, v), or one array in which both are stacked.",
                "At the end o is a sum of values with weights that add up to l.",
            ),
        ),
        Exercise(
            "kept_tokens",
            "who is dropped?",
            "Write keep(expert, gate, capacity): True for each token that is among the largest gates of its expert.",
            _keep,
            "medium",
            (
                "The place of a token is how many tokens of its expert go before it. Now these are the ones with a larger gate.",
                "Compare all pairs of tokens: the same expert, and a larger gate.",
                "The sum of such a matrix over one of its dims is the place of each token.",
            ),
        ),
        Exercise(
            "expert_layer",
            "to the expert and back",
            "Write moe(w, x, expert): tanh(token @ w) with the weights of each token's expert, by two all-to-alls.",
            _experts,
            "hard",
            (
                "pack and exchange bring the tokens to their expert. The same exchange brings the results back.",
                "After the second exchange, the result of a token is in the slot that the token had: its expert's row, its own place.",
                "JAX reads the nearest element if an index is too large. The .at[...].get of JAX's arrays can fill in a zero.",
            ),
        ),
    ),
)

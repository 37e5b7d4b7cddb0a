"""Programs of many kinds, and what identifies each: `program_corpus.py GARBAGE STEP` prints one JSON line `{name: digest}`.

They are lowered for 8 devices and not compiled. GARBAGE objects are made first, so that other objects have other addresses.
Of functions of one kind every STEP-th is used.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import enum
import functools
import hashlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

Corpus = dict[str, Any]
"""Each value is a function without arguments that returns a lowered program."""

ELEMENTWISE = "abs arccos arctan cbrt ceil cos cosh cumprod cumsum deg2rad diff exp exp2 expm1 fft.fft fft.hfft fft.ifftshift fft.rfft flip i0 isfinite log log1p logaddexp max mean median min nanmax nanmean nansum prod ptp ravel round sign sin sinc sinh sort sqrt square std sum tan tanh trapezoid trunc var"  # noqa: E501
SQUARES = "linalg.cholesky linalg.cond linalg.det linalg.eigh linalg.eigvalsh linalg.inv linalg.lstsq linalg.matrix_rank linalg.norm linalg.pinv linalg.qr linalg.slogdet linalg.solve linalg.svd cov corrcoef diag matmul outer kron trace tril triu fft.fft2 fft.rfft2"  # noqa: E501
ACTIVATIONS = "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid log_softmax logsumexp mish relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus standardize swish tanh"  # noqa: E501
SPECIAL = "digamma entr erf erfc expi expit gammaln i0 i0e i1 i1e log_ndtr logit ndtr ndtri spence xlogy"
RANDOM = "bernoulli beta bits cauchy chisquare dirichlet double_sided_maxwell exponential gamma geometric gumbel laplace logistic loggamma maxwell normal orthogonal pareto poisson rademacher rayleigh t truncated_normal uniform wald"  # noqa: E501
DISTRIBUTIONS = (
    "bernoulli beta cauchy chi2 dirichlet expon gamma gennorm geom laplace logistic norm pareto poisson t uniform"
)
TWO = "two"


class Side(enum.Enum):
    """A choice that is the default of a callback's parameter."""

    LEFT = 1


class Scale:
    """A callable object that also has a method; its repr contains its address."""

    def __init__(self, by):
        self.by = by

    def __call__(self, value):
        return value * self.by

    def apply(self, value):
        return value + self.by


def _add_each(corpus: Corpus, module: str, names: str, lower, *choices) -> None:
    """Add each function by name, with the first arguments in `choices` that it accepts."""
    for name in names.split()[:: int(sys.argv[2])]:
        corpus[f"{module}.{name}"] = functools.partial(_lower_first, module, name, lower, choices)


def _lower_first(module, name, lower, choices):
    import jax

    del jax
    function: Any = functools.reduce(getattr, f"{module}.{name}".split(".")[1:], sys.modules[module.split(".")[0]])
    refused: Exception | None = None
    for arguments in choices:
        try:
            return lower(function, *arguments)
        except (TypeError, ValueError) as error:
            refused = error
    raise RuntimeError(f"{module}.{name} takes none of the arguments") from refused


def build() -> Corpus:
    """Build the whole corpus."""
    corpus: Corpus = {}
    for add in (
        _numerics,
        _control,
        _callbacks,
        _partitioned,
        _parallel,
        _other_features,
        _kernels,
        _exported,
        _optimisers,
        _flax,
        _suite,
    ):
        add(corpus)
    return corpus


def _values():
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    rows = NamedSharding(mesh, P("data"))
    x = jax.device_put(np.linspace(0.1, 0.9, 16, dtype=np.float32), rows)
    square = jax.device_put(np.eye(8, dtype=np.float32) + 0.1, NamedSharding(mesh, P("data", "model")))
    return mesh, x, square


def _numerics(corpus: Corpus) -> None:
    import jax
    import jax.numpy as jnp
    import jax.scipy.stats

    _mesh, x, square = _values()
    key = jax.random.key(0)

    def lower(function, *arguments):
        return jax.jit(function).lower(*arguments)

    _add_each(corpus, "jax.numpy", ELEMENTWISE, lower, (x,), (x, x))
    _add_each(corpus, "jax.numpy", SQUARES, lower, (square,), (square, square))
    _add_each(corpus, "jax.nn", ACTIVATIONS, lower, (x,))
    special = "jax.scipy.special"
    _add_each(corpus, special, SPECIAL, lower, (x,), (x, x))

    def draw(function, *arguments):
        return jax.jit(lambda key: function(key, *arguments)).lower(key)

    half = jnp.full((4,), 0.5)
    _add_each(corpus, "jax.random", RANDOM, draw, (), (half,), (half, half), (4,))
    for law in DISTRIBUTIONS.split():
        for what in ("logpdf", "logpmf"):
            if hasattr(getattr(jax.scipy.stats, law), what):
                _add_each(
                    corpus,
                    f"jax.scipy.stats.{law}",
                    what,
                    lower,
                    (x,),
                    (x, 0.5),
                    (x, 0.5, 0.5),
                    (x[:2] / x[:2].sum(), half[:2]),
                )
    corpus["image.resize"] = lambda: lower(lambda a: jax.image.resize(a, (16, 4), "bilinear"), square)
    corpus["scipy.linalg.expm"] = lambda: lower(jax.scipy.linalg.expm, square)
    corpus["scipy.linalg.lu"] = lambda: lower(jax.scipy.linalg.lu, square)
    corpus["scipy.signal.convolve"] = lambda: lower(jax.scipy.signal.convolve, x, x)
    corpus["scipy.ndimage"] = lambda: lower(lambda a: jax.scipy.ndimage.map_coordinates(a, [x[:3], x[:3]], 1), square)
    corpus["attention"] = lambda: lower(lambda a: jax.nn.dot_product_attention(a, a, a), jnp.ones((2, 8, 4, 16)))
    corpus["einsum"] = lambda: lower(lambda a: jnp.einsum("ij,kj->ik", a, a), square)
    corpus["constants"] = lambda: lower(lambda a: a + jnp.arange(64.0).reshape(8, 8), square)


def _control(corpus: Corpus) -> None:
    import jax
    import jax.numpy as jnp
    from jax import lax

    _, x, square = _values()
    corpus["scan"] = lambda: jax.jit(lambda a: lax.scan(lambda c, v: (c + v, c), 0.0, a)).lower(x)
    corpus["while"] = lambda: jax.jit(lambda a: lax.while_loop(lambda v: v.sum() < 9, lambda v: v * 2, a)).lower(x)
    corpus["fori"] = lambda: jax.jit(lambda a: lax.fori_loop(0, 3, lambda i, v: v + i, a)).lower(x)
    corpus["cond"] = lambda: jax.jit(lambda a: lax.cond(a[0] > 0, jnp.sin, jnp.cos, a)).lower(x)
    corpus["switch"] = lambda: jax.jit(lambda i, a: lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], a)).lower(1, x)
    corpus["map"] = lambda: jax.jit(lambda a: lax.map(jnp.sin, a, batch_size=4)).lower(x)
    corpus["associative_scan"] = lambda: jax.jit(lambda a: lax.associative_scan(jnp.add, a)).lower(x)
    corpus["custom_linear_solve"] = lambda: jax.jit(lambda a: jax.scipy.sparse.linalg.cg(lambda v: 2 * v, a)[0]).lower(
        x
    )
    corpus["grad"] = lambda: jax.jit(jax.grad(lambda a: jnp.tanh(a).sum())).lower(x)
    corpus["hessian"] = lambda: jax.jit(jax.hessian(lambda a: (a**3).sum())).lower(x)
    corpus["vmap"] = lambda: jax.jit(jax.vmap(lambda r: lax.top_k(r, 2))).lower(square)
    corpus["checkpoint"] = lambda: jax.jit(
        jax.grad(jax.checkpoint(lambda a: jnp.sin(jnp.sin(a)).sum(), policy=jax.checkpoint_policies.dots_saveable))
    ).lower(x)

    @jax.custom_vjp
    def clipped(a):
        return a * 2

    clipped.defvjp(lambda a: (a * 2, a), lambda _, g: (g.clip(-1, 1),))
    corpus["custom_vjp"] = lambda: jax.jit(jax.grad(lambda a: clipped(a).sum())).lower(x)

    @jax.custom_jvp
    def steep(a):
        return jnp.sign(a)

    steep.defjvp(lambda p, t: (steep(*p), t[0]))
    corpus["custom_jvp"] = lambda: jax.jit(jax.grad(lambda a: steep(a).sum())).lower(x)
    corpus["named_scope"] = lambda: jax.jit(jax.named_call(lambda a: a + 1, name="mine")).lower(x)
    corpus["tree of arguments"] = lambda: jax.jit(lambda t: jax.tree.map(jnp.sin, t)).lower(
        {"b": x, "a": [x, (square,)]}
    )
    corpus["donated"] = lambda: jax.jit(lambda a: a + 1, donate_argnums=0).lower(x)
    corpus["static arguments"] = lambda: jax.jit(lambda a, n: a * n, static_argnums=1).lower(x, 3)
    corpus["static set"] = lambda: jax.jit(lambda a, names: a * len(names), static_argnums=1).lower(
        x, frozenset("abcdef")
    )
    corpus["callable object"] = lambda: jax.jit(Scale(2.0)).lower(x)
    corpus["bound method"] = lambda: jax.jit(Scale(2.0).apply).lower(x)
    corpus["partial"] = lambda: jax.jit(functools.partial(jnp.multiply, 2.0)).lower(x)
    corpus["ref"] = lambda: jax.jit(_bump).lower(x)
    corpus["composite"] = lambda: jax.jit(lambda a: lax.composite(lambda a, *, k: a * k, "my.scale")(a, k=2.0)).lower(x)
    corpus["rng_bit_generator"] = lambda: jax.jit(lambda k: lax.rng_bit_generator(k, (8,))).lower(
        jnp.zeros(4, jnp.uint32)
    )
    corpus["optimization_barrier"] = lambda: jax.jit(lax.optimization_barrier).lower((x, square))
    corpus["approx_max_k"] = lambda: jax.jit(lambda a: lax.approx_max_k(a, 2)).lower(x)
    corpus["ragged_dot"] = lambda: jax.jit(lax.ragged_dot).lower(square, jnp.ones((2, 8, 8)), jnp.array([4, 4]))
    corpus["conv"] = lambda: jax.jit(lambda a: lax.conv(a, a, (1, 1), "SAME")).lower(jnp.ones((1, 1, 8, 8)))
    corpus["gather"] = lambda: jax.jit(lambda a: a[jnp.array([3, 1, 2])]).lower(square)
    corpus["scatter"] = lambda: jax.jit(lambda a: a.at[jnp.array([3, 1])].add(1.0)).lower(square)
    corpus["reduce_window"] = lambda: jax.jit(lambda a: lax.reduce_window(a, 0.0, lax.add, (2,), (2,), "VALID")).lower(
        x
    )


def _bump(a):
    import jax

    cell = jax.new_ref(a)
    cell[...] += 1.0
    return cell[...]


def _callbacks(corpus: Corpus) -> None:
    import jax
    import numpy as np
    from jax.experimental import io_callback

    _, x, _ = _values()
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    opened = Path(os.devnull).open()  # noqa: SIM115 - an object that a callback may hold, with an address in its repr
    scale = Scale(3.0)

    @jax.jit
    def jitted(value):
        return value + 1

    def closed(value):
        return (value, opened, scale)[0]

    def chosen(value, side=Side.LEFT, names=frozenset("abcdefgh")):
        return value if side is Side.LEFT and names else None

    functions = {
        "lambda": lambda value: value + 1,
        "closure": closed,
        "callable object": scale,
        "bound method": scale.apply,
        "partial": functools.partial(np.add, 2.0),
        "partial of an object": functools.partial(Scale.apply, scale),
        "ufunc": np.sin,
        "builtin": abs,
        "jitted": jitted,
        "defaults": chosen,
        "cached": functools.lru_cache(closed),
    }
    for name, function in functions.items():
        corpus[f"pure_callback {name}"] = functools.partial(_call_back, jax.pure_callback, function, like, x)
        corpus[f"io_callback {name}"] = functools.partial(
            _call_back, io_callback, function, like, x, ordered=name == "lambda"
        )
        corpus[f"debug.callback {name}"] = functools.partial(_debug_callback, function, x)
    corpus["debug.print"] = lambda: jax.jit(lambda a: jax.debug.print("{}", a)).lower(x)
    corpus["debug.print ordered"] = lambda: jax.jit(lambda a: jax.debug.print("{}", a, ordered=True)).lower(np.ones(4))
    corpus["vmap of a callback"] = lambda: jax.jit(
        jax.vmap(lambda a: jax.pure_callback(scale, jax.ShapeDtypeStruct((), x.dtype), a, vmap_method="sequential"))
    ).lower(x)
    corpus["inspect_array_sharding"] = lambda: jax.jit(_inspect).lower(x)
    corpus["ffi_call"] = lambda: jax.jit(
        lambda a: jax.ffi.ffi_call(
            "lapack_sgetrf_ffi", (a, jax.ShapeDtypeStruct((8,), np.int32), jax.ShapeDtypeStruct((), np.int32))
        )(a)
    ).lower(np.eye(8, dtype=np.float32))


def _call_back(kind, function, like, x, **options):
    import jax

    return jax.jit(lambda a: kind(function, like, a, **options)).lower(x)


def _debug_callback(function, x):
    import jax

    return jax.jit(lambda a: (jax.debug.callback(function, a), a)[1]).lower(x)


def _inspect(a):
    import jax

    jax.debug.inspect_array_sharding(a, callback=print)
    return a


def _partitioned(corpus: Corpus) -> None:
    import jax
    from jax.experimental.custom_partitioning import custom_partitioning

    _, x, square = _values()

    def make(scale):
        @custom_partitioning
        def scaled(a):
            return a * scale

        def partition(mesh, arguments, result):
            del result
            return mesh, lambda a: a * scale, arguments[0].sharding, (arguments[0].sharding,)

        scaled.def_partition(partition=partition, sharding_rule="... -> ...")
        return scaled

    once, twice = make(2.0), make(3.0)
    corpus["custom_partitioning"] = lambda: jax.jit(once).lower(x)
    corpus["custom_partitioning of two"] = lambda: jax.jit(lambda a: once(twice(a)) + twice(a)).lower(square)
    corpus["custom_partitioning in scan"] = lambda: jax.jit(
        lambda a: jax.lax.scan(lambda c, _: (once(c), None), a, None, length=3)[0]
    ).lower(x)


def _parallel(corpus: Corpus) -> None:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh, x, square = _values()

    split = P("data")

    def mapped(function, inside=split, outside=split, **options):
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=inside, out_specs=outside, **options))

    collectives = {
        "psum": lambda a: lax.psum(a, "data") + a,
        "psum of two axes": lambda a: lax.psum(lax.pcast(a, "model", to="varying"), ("model", "data")) + a,
        "pmax": lambda a: lax.pmax(a, "data") + a,
        "ppermute": lambda a: lax.ppermute(a, "data", [(0, 1), (1, 2), (2, 3), (3, 0)]),
        "all_gather": lambda a: lax.all_gather(a, "data").sum(0) + a,
        "all_to_all": lambda a: lax.all_to_all(a, "data", 0, 0, tiled=True),
        "psum_scatter": lambda a: lax.psum_scatter(jnp.tile(a, 4), "data", tiled=True),
        "axis_index": lambda a: a + lax.axis_index("data"),
        "callback": lambda a: jax.pure_callback(abs, jax.ShapeDtypeStruct((4,), a.dtype), a),
        "print": lambda a: (jax.debug.print("{}", a), a)[1],
    }
    for name, function in collectives.items():
        corpus[f"shard_map {name}"] = functools.partial(lambda function: mapped(function).lower(x), function)
        if "two axes" not in name:
            corpus[f"pmap {name}"] = functools.partial(_pmap, function)
    corpus["shard_map of some axes"] = lambda: mapped(
        lambda a: lax.psum(a, "data"), outside=P(), axis_names={"data"}
    ).lower(x)
    corpus["shard_map unchecked"] = lambda: mapped(
        lambda a: a, P("data", "model"), P("data", "model"), check_vma=False
    ).lower(square)
    corpus["with_sharding_constraint"] = lambda: jax.jit(
        lambda a: lax.with_sharding_constraint(a, NamedSharding(mesh, P("model", "data")))
    ).lower(square)
    corpus["out_shardings"] = lambda: jax.jit(lambda a: a.sum(), out_shardings=NamedSharding(mesh, P())).lower(square)
    explicit = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    y = jax.device_put(square, NamedSharding(explicit, P("a", "b")))
    corpus["explicit"] = lambda: jax.jit(lambda a: jnp.sin(a) + a).lower(y)
    corpus["reshard"] = lambda: jax.jit(lambda a: jax.sharding.reshard(a, NamedSharding(explicit, P("b", "a")))).lower(
        y
    )
    corpus["unreduced"] = lambda: jax.jit(
        lambda a: jnp.einsum("ij,jk->ik", a, a.T, out_sharding=NamedSharding(explicit, P("a", None)))
    ).lower(y)
    corpus["compute_on"] = lambda: jax.jit(_on_host).lower(x)


def _on_host(a):
    from jax.experimental.compute_on import compute_on

    with compute_on("device_host"):
        return a * 2


def _pmap(function):
    import jax
    import numpy as np

    return jax.pmap(function, axis_name="data", devices=jax.devices()[:4]).lower(np.ones((4, 4), np.float32))


def _other_features(corpus: Corpus) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import sparse

    _, x, square = _values()
    dense = jnp.eye(8)
    corpus["sparse"] = lambda: jax.jit(lambda a: sparse.BCOO.fromdense(dense, nse=8) @ a).lower(square)
    corpus["sparsify"] = lambda: jax.jit(sparse.sparsify(lambda m, v: m @ v)).lower(sparse.BCOO.fromdense(dense), x[:8])
    corpus["checkify"] = lambda: jax.jit(_checked()).lower(x)
    corpus["keys"] = lambda: jax.jit(lambda k: jax.random.split(k, 4)).lower(jax.random.key(1, impl="rbg"))
    corpus["bcsr"] = lambda: jax.jit(lambda m: m.todense()).lower(sparse.BCSR.fromdense(dense))
    corpus["metadata"] = lambda: jax.jit(_with_metadata).lower(x)
    corpus["compiler options"] = lambda: jax.jit(jnp.sin, compiler_options={"xla_embed_ir_in_executable": True}).lower(
        x
    )


def _with_metadata(a):
    from jax.experimental.xla_metadata import set_xla_metadata

    with set_xla_metadata(zeta="1", alpha="2", mine="3"):
        return a + 1


def _checked():
    from jax.experimental import checkify

    def f(a):
        checkify.check(a.sum() > 0, "must be positive")
        return a

    return checkify.checkify(f)


def _kernels(corpus: Corpus) -> None:
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plt

    _, x, square = _values()

    # A compiled kernel contains the name of its file, which must be the same on all ranks. Mosaic's also contain those
    # of its callers.
    scope: dict[str, Any] = {}
    exec(compile("def double(source, result):\n    result[...] = source[...] * 2", "<kernel>", "exec"), scope)
    double = scope["double"]
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    corpus["pallas interpret"] = lambda: jax.jit(pl.pallas_call(double, out_shape=like, interpret=True)).lower(x)
    block = pl.BlockSpec((2, 8), lambda i: (i, 0))
    corpus["pallas grid"] = lambda: jax.jit(
        pl.pallas_call(
            double,
            grid=(4,),
            in_specs=[block],
            out_specs=block,
            out_shape=jax.ShapeDtypeStruct((8, 8), x.dtype),
            interpret=True,
        )
    ).lower(square)
    wide = jax.ShapeDtypeStruct((1024,), "float32")
    triton = pl.pallas_call(double, out_shape=wide, compiler_params=plt.CompilerParams(num_warps=4))
    corpus["triton for cuda"] = functools.partial(_lower_for, "cuda", triton, (1024,))
    corpus["scaled_matmul for cuda"] = functools.partial(
        _lower_for, "cuda", _multiply_scaled, (1, 128, 128), "float8_e4m3fn"
    )
    corpus["cholesky for cuda"] = functools.partial(_lower_for, "cuda", jax.numpy.linalg.cholesky, (8, 8))
    corpus["lu for cuda"] = functools.partial(_lower_for, "cuda", jax.numpy.linalg.inv, (8, 8))
    corpus["eigh for tpu"] = functools.partial(_lower_for, "tpu", jax.numpy.linalg.eigh, (8, 8))


def _multiply_scaled(a):
    import jax

    scales = jax.numpy.ones((1, 128, 4), jax.numpy.float8_e8m0fnu)
    return jax.nn.scaled_matmul(a, a, scales, scales)


def _lower_for(platform, function, shape=(16,), dtype="float32"):
    import jax

    traced = jax.jit(function).trace(jax.ShapeDtypeStruct(shape, dtype))
    return traced.lower(lowering_platforms=(platform,))


def _exported(corpus: Corpus) -> None:
    import jax
    import jax.numpy as jnp

    _, x, _ = _values()
    whole = jax.export.export(jax.jit(lambda a: jnp.sin(a).sum()))(x)
    corpus["exported"] = lambda: jax.jit(whole.call).lower(x)
    (n,) = jax.export.symbolic_shape("n")
    poly = jax.export.export(jax.jit(lambda a: a.sum() + a.shape[0]))(jax.ShapeDtypeStruct((n,), "float32"))
    corpus["exported with a free size"] = lambda: jax.jit(poly.call).lower(jnp.ones(5))


def _optimisers(corpus: Corpus) -> None:
    import jax
    import jax.numpy as jnp
    import optax  # type: ignore[import-untyped]

    _, _, square = _values()
    params = {"w": square, "b": jnp.zeros(8)}
    names = "adam adamw adagrad adafactor lamb lion rmsprop sgd yogi nadam radam adabelief"
    for name in names.split():
        corpus[f"optax.{name}"] = functools.partial(_step, getattr(optax, name)(1e-3), params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)
    chained = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule), optax.ema(0.9))
    corpus["optax.chain"] = functools.partial(_step, chained, params)
    parts = optax.multi_transform({"slow": optax.sgd(0.1), "fast": optax.adam(0.1)}, {"w": "slow", "b": "fast"})
    corpus["optax.multi_transform"] = functools.partial(_step, parts, params)
    corpus["optax losses"] = lambda: jax.jit(
        lambda a: optax.softmax_cross_entropy_with_integer_labels(a, jnp.arange(8)).mean()
    ).lower(square)


def _step(optimiser, params):
    import jax
    import jax.numpy as jnp
    import optax

    def step(params, state, x):
        slopes = jax.grad(lambda p: jnp.mean((x @ p["w"] + p["b"]) ** 2))(params)
        updates, state = optimiser.update(slopes, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step, donate_argnums=(0, 1)).lower(params, optimiser.init(params), params["w"])


def _flax(corpus: Corpus) -> None:
    if importlib.util.find_spec("flax") is None:
        return
    import jax
    import jax.numpy as jnp
    from flax import linen, nnx  # type: ignore[import-not-found,unused-ignore]

    class Model(linen.Module):
        @linen.compact
        def __call__(self, a, *, train=True):
            a = linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(a))
            return linen.Dropout(0.1, deterministic=not train)(linen.relu(a))

    model, a = Model(), jnp.ones((4, 8))
    variables = model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, a)
    corpus["flax.linen"] = lambda: jax.jit(
        lambda v, a, k: model.apply(v, a, mutable=["batch_stats"], rngs={"dropout": k})
    ).lower(variables, a, jax.random.key(2))
    layers = {
        "Conv": (lambda: linen.Conv(4, (3, 3)), (1, 8, 8, 3)),
        "LayerNorm": (linen.LayerNorm, (4, 8)),
        "MultiHeadDotProductAttention": (lambda: linen.MultiHeadDotProductAttention(2), (2, 8, 8)),
        "RNN": (lambda: linen.RNN(linen.LSTMCell(8)), (2, 4, 8)),
        "remat": (lambda: linen.remat(linen.Dense)(8), (4, 8)),
        "scan": (
            lambda: linen.scan(linen.Dense, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)(8),
            (4, 8),
        ),
    }
    for name, (make, shape) in layers.items():
        if name != "scan":
            corpus[f"flax.linen.{name}"] = functools.partial(_init_flax, make, shape)
    for name in ("Linear", "LayerNorm", "BatchNorm", "Dropout"):
        corpus[f"flax.nnx.{name}"] = functools.partial(_call_nnx, nnx, name)
    corpus["flax.nnx train"] = functools.partial(_train_nnx, nnx)


def _init_flax(make, shape):
    import jax
    import jax.numpy as jnp

    return jax.jit(lambda k, a: make().init_with_output(k, a)).lower(jax.random.key(0), jnp.ones(shape))


def _make_nnx(nnx, name):
    rngs = nnx.Rngs(0)
    kinds = {"Linear": (8, 8), "Dropout": (0.5,)}
    return getattr(nnx, name)(*kinds.get(name, (8,)), rngs=rngs)


def _call_nnx(nnx, name):
    import jax
    import jax.numpy as jnp

    graph, state = nnx.split(_make_nnx(nnx, name))

    def call(state, a):
        layer = nnx.merge(graph, state)
        return layer(a), nnx.state(layer)

    return jax.jit(call).lower(state, jnp.ones((4, 8)))


def _train_nnx(nnx):
    import jax
    import jax.numpy as jnp
    import optax

    model = _make_nnx(nnx, "Linear")
    graph, state = nnx.split((model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)))

    def step(state, a):
        model, optimiser = nnx.merge(graph, state)
        optimiser.update(model, nnx.grad(lambda m: (m(a) ** 2).mean())(model))
        return nnx.state((model, optimiser))

    return jax.jit(step).lower(state, jnp.ones((4, 8)))


def _suite(corpus: Corpus) -> None:
    import jax
    import numpy as np

    from tests.unit.sharding import programs

    world = programs.World(np.array(jax.devices()))
    for program in programs.CPU:
        corpus[f"suite {program.__name__}"] = functools.partial(_lower_recorded, program, world)


def _lower_recorded(program, world):
    function, arguments = program(world)
    return function.lower(*arguments)


def identify(lowered: Any) -> str:
    """Return what the guard hashes of a lowered program, without its devices."""
    from mhnb.rank import jax_private

    computation = lowered._lowering
    jax_private._current.module, jax_private._current.arguments = computation._hlo, computation.compile_args
    return jax_private._module_text(None, is_loaded=False)


def main() -> None:
    """Lower everything, and print what identifies each program."""
    garbage = [object() for _ in range(int(sys.argv[1]))]
    # Delete every second object, so that later objects are placed between the others.
    del garbage[::2]
    corpus = list(build().items())
    # Programs that were traced before must not count, because one rank may have run something alone.
    texts = {name: identify(make()) for name, make in (reversed(corpus) if garbage else corpus)}
    print(json.dumps({name: hashlib.blake2b(text.encode(), digest_size=8).hexdigest() for name, text in texts.items()}))


if __name__ == "__main__":
    # Run this file under another name in each process, as a script has on each host.
    here: dict[str, Any] = {"__name__": "corpus", "__file__": __file__}
    exec(compile(Path(__file__).read_text(), f"/tmp/{os.getpid()}/corpus.py", "exec"), here)
    here["main"]()

"""The built-in models: they run, they learn, and they compute what they claim to."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright import models
from shardwright.errors import TargetError
from shardwright.models import MODELS, adam, build, layers
from shardwright.models.gns import accelerations
from shardwright.models.gpt import logits as gpt_logits
from shardwright.models.moe import MoeSizes, mixture, route
from shardwright.models.unet import TIMESTEPS, double
from shardwright.models.vit import logits as vit_logits

# Millions of parameters of every preset but "tiny".
PARAMETERS = {
    ("gpt", "default"): 671,
    ("gpt", "gemma-2b"): 2506,
    ("gpt", "gemma-7b"): 8538,
    ("itx", "default"): 8030,
    ("itx", "multi-query"): 7795,
    ("unet", "default"): 491,
    ("gns", "default"): 233,
    ("moe", "default"): 4631,
    ("vit", "default"): 304,
    ("vit", "huge"): 632,
    ("mlp", "default"): 537,
}


def inputs(args: Any, sizes: Any, seed: int = 0) -> Any:
    """Make arguments of the given shapes: norms at one, biases and states at zero, the rest random."""
    rng = np.random.default_rng(seed)
    vocabulary, nodes = getattr(sizes, "vocabulary", 0), getattr(sizes, "nodes", 0)
    bounds = {
        "tokens": vocabulary,
        "targets": vocabulary,
        "labels": getattr(sizes, "classes", 0),
        "senders": nodes,
        "receivers": nodes,
        "timesteps": TIMESTEPS,
    }

    # NumPy makes the values, because JAX would compile a program for every shape.
    def make(path: Any, leaf: Any) -> np.ndarray:
        keys = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        name = keys[-1]
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            # The itx step takes its tokens and position by place, so these have no name.
            bound = 1 if leaf.ndim == 0 else bounds.get(name, vocabulary)
            return np.asarray(rng.integers(0, bound, leaf.shape), leaf.dtype)
        if "opt" in keys or name in ("k", "v", "bias"):
            return np.zeros(leaf.shape, leaf.dtype)
        if name == "scale" or name.endswith("norm"):
            return np.ones(leaf.shape, leaf.dtype)
        weight = "params" in keys or hasattr(sizes, "context")
        return np.asarray(rng.normal(size=leaf.shape) * (0.15 if weight else 1.0), leaf.dtype)

    return jax.device_put(jax.tree_util.tree_map_with_path(make, args))


def tiny(name: str, seed: int = 0, **sizes: Any) -> tuple[Any, Any, Any]:
    """Build a model at tiny size: the function, arguments that hold values, and the sizes."""
    fn, args, _ = build(name, preset="tiny", **sizes)
    chosen = dataclasses.replace(MODELS[name].presets["tiny"], **sizes)
    return fn, inputs(args, chosen, seed), chosen


def compiled(fn: Any, donate: tuple[int, ...] = ()) -> Any:
    """Compile for a CPU in a hurry: these programs run for less time than optimising them takes."""
    return jax.jit(fn, donate_argnums=donate, compiler_options={"xla_backend_optimization_level": 0})


def described(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def unstacked(layers: Any, count: int) -> list[Any]:
    return [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], layers) for i in range(count)]


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    def compare(a: Any, b: Any) -> None:
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

    jax.tree.map(compare, actual, expected)


# Running


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gpt", {}),
        ("gpt", {"dtype": "bfloat16"}),
        ("unet", {"batch": 8}),
        ("gns", {}),
        ("moe", {"batch": 8}),
        ("vit", {}),
        ("mlp", {}),
    ],
)
def test_training_reduces_the_loss(name: str, sizes: dict[str, Any]) -> None:
    fn, args, options = build(name, preset="tiny", **sizes)
    state, batch = inputs(args, MODELS[name].presets["tiny"])
    step = compiled(fn, options["donate"])
    losses = []
    for _ in range(5):
        state, loss = step(state, batch)
        assert loss.shape == () and loss.dtype == jnp.float32
        losses.append(float(loss))
    assert described(state) == described(args[0])
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(state))
    assert int(state["step"]) == 5
    assert losses[-1] < 0.99 * losses[0]


def test_decoding_keeps_the_structure() -> None:
    fn, args, options = build("itx", preset="tiny")
    assert options == {"donate": (1,)}
    params, cache, tokens, position = inputs(args, MODELS["itx"].presets["tiny"])
    logits, cache = compiled(fn, options["donate"])(params, cache, tokens, position)
    assert described(cache) == described(args[1])
    assert logits.shape == (24, 128) and logits.dtype == jnp.float32
    assert bool(jnp.isfinite(logits).all())


# Equivalences


@pytest.mark.parametrize(
    ("name", "stack", "sizes"),
    [
        ("gpt", "layers", {"gated": True, "kv_heads": 2, "remat": False}),
        ("vit", "layers", {}),
        ("gns", "steps", {}),
    ],
)
def test_scanned_and_unrolled_are_the_same(name: str, stack: str, sizes: dict[str, Any]) -> None:
    scanned, (state, batch), chosen = tiny(name, scan=True, **sizes)
    # The unrolled one also recomputes where the scanned one does not, which must change nothing.
    unrolled, args, _ = build(name, preset="tiny", **(sizes | {"scan": False, "remat": True}))
    count = getattr(chosen, stack)

    def unstack(params: Any) -> Any:
        return params | {stack: unstacked(params[stack], count)}

    flat = {
        "params": unstack(state["params"]),
        "opt": {"m": unstack(state["opt"]["m"]), "v": unstack(state["opt"]["v"])},
        "step": state["step"],
    }
    assert described(flat) == described(args[0])
    # The gradient of what comes before the layers goes through all of them; the moment is a tenth of it.
    before = {"gpt": "embed", "vit": "positions", "gns": "encode_nodes"}[name]

    def loss_and_moment(fn: Any, state: Any) -> Any:
        def run(state: Any, batch: Any) -> Any:
            state, loss = fn(state, batch)
            return loss, state["opt"]["m"][before]

        return compiled(run)(state, batch)

    assert_close(loss_and_moment(unrolled, flat), loss_and_moment(scanned, state), 1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_shared_heads_equal_repeated_heads(kv_heads: int) -> None:
    _, (state, batch), sizes = tiny("gpt", kv_heads=kv_heads)
    params = state["params"]
    copied = dict(params["layers"])
    for name in ("wk", "wv"):
        weight = copied[name] if kv_heads > 1 else copied[name][:, :, None, :]
        assert weight.shape == (2, 32, kv_heads, 24)
        copied[name] = jnp.repeat(weight, sizes.heads // kv_heads, axis=2)
    forward = compiled(lambda params, tokens: gpt_logits(params, tokens, sizes))
    shared = forward(params, batch["tokens"])
    repeated = forward(params | {"layers": copied}, batch["tokens"])
    assert_close(shared, repeated, 1e-4)


def test_gpt_looks_only_backwards() -> None:
    _, (state, batch), sizes = tiny("gpt")
    tokens = batch["tokens"]
    changed = tokens.at[:, 20].set((tokens[:, 20] + 1) % sizes.vocabulary)
    forward = compiled(lambda params, tokens: gpt_logits(params, tokens, sizes))
    difference = forward(state["params"], tokens) - forward(state["params"], changed)
    difference = jnp.abs(difference).max(axis=(0, 2))
    assert difference[:20].max() == 0
    assert difference[20:].min() > 0


def reference_rotary(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotate x [b, t, n, h] as complex numbers."""
    pairs = x.shape[-1] // 2
    turn = np.exp(1j * positions[:, None] * 10_000.0 ** (-np.arange(pairs) / pairs))[:, None, :]
    turned = (x[..., :pairs] + 1j * x[..., pairs:]) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


def reference_logits(params: Any, tokens: np.ndarray, activation: Any, scale: float = 1.0) -> np.ndarray:
    """Full attention over tokens [b, t] in float64: logits [b, t, v], with or without an unembedding."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale

    length = tokens.shape[1]
    positions = np.arange(length)
    x = params["embed"][tokens] * scale
    for layer in unstacked(params["layers"], params["layers"]["wq"].shape[0]):
        y = norm(x, layer["attention_norm"])
        wk, wv = (w[:, None] if w.ndim == 2 else w for w in (layer["wk"], layer["wv"]))
        repeats = layer["wq"].shape[1] // wk.shape[1]
        q = reference_rotary(np.einsum("btd,dnh->btnh", y, layer["wq"]), positions)
        k = reference_rotary(np.einsum("btd,dnh->btnh", y, wk), positions).repeat(repeats, axis=2)
        v = np.einsum("btd,dnh->btnh", y, wv).repeat(repeats, axis=2)
        scores = np.einsum("bsnh,btnh->bnst", q, k) / np.sqrt(q.shape[-1])
        weights = np.exp(scores) * np.tri(length)
        weights /= weights.sum(axis=-1, keepdims=True)
        x = x + np.einsum("bnst,btnh,nhd->bsd", weights, v, layer["wo"], optimize=True)
        y = norm(x, layer["mlp_norm"])
        up = y @ layer["w_up"]
        hidden = activation(y @ layer["w_gate"]) * up if "w_gate" in layer else activation(up)
        x = x + hidden @ layer["w_down"]
    return norm(x, params["final_norm"]) @ params.get("unembed", params["embed"].T)


def reference_silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def reference_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("gated", [False, True])
def test_gpt_equals_the_reference(gated: bool) -> None:
    _, (state, batch), sizes = tiny("gpt", gated=gated, batch=3)
    params, tokens = state["params"], batch["tokens"]
    logits = compiled(lambda params, tokens: gpt_logits(params, tokens, sizes))(params, tokens)
    expected = reference_logits(params, np.asarray(tokens), reference_gelu, scale=math.sqrt(sizes.width))
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kv_heads", [1, 8, 32])
def test_decoding_equals_full_attention(kv_heads: int) -> None:
    fn, (params, cache, _, _), sizes = tiny("itx", kv_heads=kv_heads, batch=3)
    assert cache["k"].shape == (2, 3, 40, *((kv_heads,) if kv_heads > 1 else ()), 16)
    tokens = np.random.default_rng(1).integers(0, sizes.vocabulary, (3, 6))
    expected = reference_logits(params, tokens, reference_silu)
    step = compiled(fn)
    for position in range(6):
        logits, cache = step(params, cache, jnp.asarray(tokens[:, position], jnp.int32), jnp.int32(position))
        np.testing.assert_allclose(logits, expected[:, position], rtol=1e-3, atol=1e-3)
    written = np.asarray(jnp.abs(cache["k"]).max(axis=(0, 1, *range(3, cache["k"].ndim))))
    assert (written[:6] > 0).all() and (written[6:] == 0).all()


# The mixture of experts


def routing(**sizes: Any) -> tuple[MoeSizes, jax.Array, dict[str, jax.Array]]:
    chosen = dataclasses.replace(MODELS["moe"].presets["tiny"], **sizes)
    rng = np.random.default_rng(2)
    shapes = {"router": (32, 16), "w_up": (16, 32, 64), "w_down": (16, 64, 32)}
    layer = {name: jnp.asarray(rng.normal(size=shape) * 0.2, jnp.float32) for name, shape in shapes.items()}
    return chosen, jnp.asarray(rng.normal(size=(48, 40, 32)), jnp.float32), layer


def test_with_room_every_token_meets_its_best_experts() -> None:
    sizes, x, layer = routing(capacity_factor=8.0)
    y, balance = compiled(lambda x, layer: mixture(x, layer, sizes))(x, layer)

    def reference(x: jax.Array, layer: dict[str, jax.Array]) -> jax.Array:
        best, chosen = jax.lax.top_k(jax.nn.softmax(x @ layer["router"], axis=-1), sizes.top_k)
        best = best / best.sum(axis=-1, keepdims=True)
        weights = jnp.sum(jax.nn.one_hot(chosen, 16) * best[..., None], axis=2)
        hidden = jax.nn.gelu(jnp.einsum("gtd,edf->gtef", x, layer["w_up"]))
        return jnp.einsum("gte,gtef,efd->gtd", weights, hidden, layer["w_down"])

    assert_close(y, compiled(reference)(x, layer), 1e-4)
    assert 1.0 < float(balance) < 16.0


def test_an_expert_takes_no_more_than_its_capacity() -> None:
    sizes, x, layer = routing(capacity_factor=0.5)
    combine, _ = compiled(lambda x, router: route(x, router, sizes))(x, layer["router"])
    assert combine.shape == (48, 40, 16, sizes.capacity) and sizes.capacity == 3
    seated = np.asarray(combine > 0)
    assert seated.sum(axis=1).max() == 1
    assert 0 < seated.sum() < 2 * 48 * 40
    # First choices are seated before second ones, so an expert with first choices to spare is full of them.
    first = np.asarray(jax.nn.one_hot(jnp.argmax(x @ layer["router"], axis=-1), 16))
    demand = first.sum(axis=1)
    crowded = demand >= sizes.capacity
    assert crowded.any()
    kept = (seated.any(axis=-1) * first).sum(axis=1)
    assert (kept[crowded] == sizes.capacity).all()


def test_balance_counts_crowding() -> None:
    sizes, x, layer = routing()
    x = jnp.abs(x)
    one = jnp.zeros_like(layer["router"]).at[:, 5].set(10.0)
    _, balance = compiled(lambda x, router: route(x, router, sizes))(x, one)
    assert float(balance) == pytest.approx(16.0, rel=1e-3)


# Graphs and images


def test_messages_go_from_senders_to_receivers() -> None:
    _, (state, batch), sizes = tiny("gns", steps=1)
    # A ring: node i sends to node i + 1, several times over.
    senders = jnp.arange(sizes.edges) % sizes.nodes
    batch = batch | {"senders": senders, "receivers": (senders + 1) % sizes.nodes}
    changed = batch | {"nodes": batch["nodes"].at[10].add(1.0)}
    forward = compiled(lambda params, batch: accelerations(params, batch, sizes))
    before, after = (forward(state["params"], b) for b in (batch, changed))
    moved = np.flatnonzero(np.abs(np.asarray(after - before)).max(axis=-1))
    assert moved.tolist() == [10, 11]


def test_vit_patches_are_squares_of_the_image() -> None:
    _, (state, batch), sizes = tiny("vit", batch=2)
    images = batch["images"]
    params = state["params"] | {"positions": jnp.zeros_like(state["params"]["positions"])}
    first, second = images[:, 8:16, 0:8], images[:, 24:32, 40:48]
    swapped = images.at[:, 8:16, 0:8].set(second).at[:, 24:32, 40:48].set(first)
    shifted = jnp.roll(images, 1, axis=2)
    forward = compiled(lambda params, images: vit_logits(params, images, sizes))
    before, same, other = (forward(params, i) for i in (images, swapped, shifted))
    # Without positions the order of patches means nothing, while what is inside one does.
    assert_close(same, before, 1e-5)
    assert float(jnp.abs(other - before).max()) > 1e-3


def test_double_repeats_pixels() -> None:
    x = np.random.default_rng(3).normal(size=(2, 3, 5, 4)).astype(np.float32)
    np.testing.assert_array_equal(double(jnp.asarray(x)), x.repeat(2, axis=1).repeat(2, axis=2))


# Layers and the optimiser


def test_norms_standardise() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(3.0, 2.0, (2, 4, 4, 24)).astype(np.float32)
    norm = {"scale": jnp.full(24, 2.0), "bias": jnp.full(24, 0.5)}

    def standard(y: np.ndarray, axis: Any) -> np.ndarray:
        return (y - y.mean(axis=axis, keepdims=True)) / y.std(axis=axis, keepdims=True)

    grouped = standard(x.reshape(2, 4, 4, 3, 8), (1, 2, 4)).reshape(x.shape)
    assert_close(layers.group_norm(jnp.asarray(x), norm, 3), 2 * grouped + 0.5, 1e-4)
    assert_close(layers.layer_norm(jnp.asarray(x), norm), 2 * standard(x, -1) + 0.5, 1e-4)
    root = np.sqrt((x**2).mean(axis=-1, keepdims=True))
    assert_close(layers.rms_norm(jnp.asarray(x), norm["scale"]), 2 * x / root, 1e-4)


def test_cross_entropy_is_that_of_the_targets() -> None:
    rng = np.random.default_rng(5)
    logits = jnp.asarray(rng.normal(size=(3, 5, 16)) * 4, jnp.float32)
    targets = jnp.asarray(rng.integers(0, 16, (3, 5)), jnp.int32)
    expected = -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1))
    assert_close(layers.cross_entropy(logits, targets), expected, 1e-6)


def test_adam_by_hand() -> None:
    rng = np.random.default_rng(6)
    p, m, v = rng.normal(size=4), np.zeros(4), np.zeros(4)
    params, opt = {"w": jnp.asarray(p, jnp.float32)}, {"m": {"w": jnp.zeros(4)}, "v": {"w": jnp.zeros(4)}}
    for step in range(3):
        g = rng.normal(size=4)
        m = 0.9 * m + 0.1 * g
        v = 0.95 * v + 0.05 * g**2
        p = p - 1e-3 * (m / (1 - 0.9 ** (step + 1))) / (np.sqrt(v / (1 - 0.95 ** (step + 1))) + 1e-8)
        params, opt = adam.update(params, opt, jnp.int32(step), {"w": jnp.asarray(g, jnp.float32)})
    assert_close(params["w"], p, 1e-5)
    assert_close((opt["m"]["w"], opt["v"]["w"]), (m, v), 1e-5)


# Presets


@pytest.mark.parametrize(
    ("name", "remat"), [("gpt", False), ("unet", True), ("gns", True), ("moe", False), ("vit", False)]
)
def test_recomputing_can_be_asked_for_or_declined(name: str, remat: bool) -> None:
    assert MODELS[name].presets["tiny"].remat is not remat
    fn, args, _ = build(name, preset="tiny", remat=remat)
    assert ("remat" in str(jax.make_jaxpr(fn)(*args))) is remat


@pytest.mark.parametrize(("name", "preset"), PARAMETERS)
def test_every_full_size_traces(name: str, preset: str) -> None:
    fn, args, options = build(name, preset=preset)
    assert all(type(leaf) is jax.ShapeDtypeStruct for leaf in jax.tree.leaves(args))
    (donated,) = options["donate"]
    outputs = jax.eval_shape(fn, *args)
    # What is donated comes back in the same shapes, or its buffers could not be used again.
    returned = outputs[1] if MODELS[name].name == "itx" else outputs[0]
    assert described(returned) == described(args[donated])


def parameter_count(name: str, preset: str) -> int:
    _, args, _ = build(name, preset=preset)
    params = args[0] if name == "itx" else args[0]["params"]
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def test_every_full_size_has_its_parameters() -> None:
    full = {(model.name, preset) for model in MODELS.values() for preset in model.presets if preset != "tiny"}
    counts = {key: round(parameter_count(*key) / 1e6) for key in full}
    assert counts == PARAMETERS


def test_scanning_does_not_change_the_parameters() -> None:
    for name, other in (("gpt", False), ("vit", False), ("gns", True)):
        _, args, _ = build(name, scan=other)
        count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(args[0]["params"]))
        assert count == parameter_count(name, "default")


# Names and sizes


def test_registry() -> None:
    assert list(MODELS) == ["gpt", "itx", "decode", "unet", "gns", "moe", "vit", "mlp"]
    assert MODELS["decode"] is MODELS["itx"]
    for name, model in MODELS.items():
        assert model.name == name or name == "decode"
        assert getattr(models, model.name) is model.build
        assert {"default", "tiny"} <= set(model.presets)
        assert "\n" not in model.summary
        assert type(model.presets["default"])() == model.presets["default"]


def test_sizes_by_keyword() -> None:
    _, (state, batch), _ = models.gpt("gemma-2b", layers=3, batch=5)
    assert state["params"]["layers"]["w_gate"].shape == (3, 2048, 16384)
    assert state["params"]["layers"]["wk"].shape == (3, 2048, 256)
    assert batch["tokens"].shape == (5, 2048)
    _, (state, _), _ = build("moe", alternate=False, layers=3)
    assert "dense" not in state["params"]["layers"]
    assert state["params"]["layers"]["sparse"]["w_up"].shape == (3, 32, 2048, 8192)


@pytest.mark.parametrize("factor", [2, 2.0])
def test_an_integer_will_do_for_a_number(factor: float) -> None:
    assert dataclasses.replace(MODELS["moe"].presets["default"], capacity_factor=factor).capacity == 128


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("gtp", {}, ["'gtp'", "did you mean gpt", "unet", "decode"]),
        ("resnet", {}, ["'resnet'", "unet", "mlp"]),
        ("gpt", {"preset": "gemma2b"}, ["gpt", "'gemma2b'", "did you mean gemma-2b"]),
        ("gpt", {"preset": 2}, ["preset 2", "default"]),
        ("gpt", {"layer": 2}, ["'layer'", "did you mean layers"]),
        ("gpt", {"zzz": 2}, ["'zzz'", "choose from layers, width"]),
        ("gpt", {"layers": 0}, ["layers must be positive, not 0"]),
        ("gpt", {"layers": 2.0}, ["layers must be an integer, not 2.0"]),
        ("gpt", {"layers": True}, ["layers must be an integer, not True"]),
        ("gpt", {"layers": "2"}, ["layers must be an integer, not '2'"]),
        ("gpt", {"gated": 1}, ["gated must be true or false, not 1"]),
        ("gpt", {"dtype": "int8"}, ["dtype must be one of bfloat16", "'int8'"]),
        ("gpt", {"kv_heads": 3}, ["heads (16) must be a multiple of kv_heads (3)"]),
        ("gpt", {"head_dim": 3}, ["head_dim (3) must be even"]),
        ("decode", {"kv_heads": 64}, ["itx: heads (32) must be a multiple of kv_heads (64)"]),
        ("moe", {"layers": 3}, ["layers (3) must be even"]),
        ("moe", {"top_k": 64}, ["top_k (64) must not exceed experts (32)"]),
        ("moe", {"group": 1000}, ["(32768) must be a multiple of group (1000)"]),
        ("moe", {"capacity_factor": 0.0}, ["capacity_factor must be positive, not 0.0"]),
        ("moe", {"capacity_factor": math.nan}, ["capacity_factor must be a number, not nan"]),
        ("unet", {"groups": 7}, ["width (256) must be a multiple of groups (7)"]),
        ("unet", {"image": 60}, ["image (60) must be a multiple of 8"]),
        ("unet", {"attention_levels": 5}, ["attention_levels (5) must not exceed levels (4)"]),
        ("unet", {"attention_levels": -1}, ["attention_levels must be at least 0, not -1"]),
        ("vit", {"patch": 15}, ["image (224) must be a multiple of patch (15)"]),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, sizes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(TargetError) as caught:
        build(name, **sizes)
    message = str(caught.value)
    assert all(word in message for word in words), message
    # One sentence: it ends once, at the end.
    assert "\n" not in message and message[-1] in ".?" and ". " not in message and "? " not in message

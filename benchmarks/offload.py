"""Values on the host: what a plan says of them, and what the TPU compiler makes of it.

    python benchmarks/offload.py --rows rows.jsonl                     compile what is not in the file yet
    python benchmarks/offload.py --rows rows.jsonl --no-compile --write docs/benchmarks/offload.md

Needs the tpu extra, and no TPU. The training step of a decoder of 24 scanned layers (width 2,048, 16 heads of 128,
hidden 8,192, 32,768 tokens in the vocabulary; 1.3 billion parameters, Adam, bf16 activations, `jax.checkpoint` around
each layer) on 64 sequences of 2,048 tokens, for 16 TPU v5e. What lies on the host differs:

- *activations*: the input of each layer, all that the backward pass keeps, by `save_and_offload_only_these_names`;
- *more activations*: with it the output of each layer's attention, which is then not computed again;
- *moments*: Adam's two moments of each parameter are arguments and results on the host, moved to the device for the
  update and back;
- *moments, behind a barrier*: the same, with an `optimization_barrier` that has them wait for the gradients;
- *moments, layer by layer*: the same, but those of the layers are moved and updated in a loop over the layers.

The compiler's bytes are those of its own account (`memory_analysis`): its peak of a device, and its arguments, results
and temporaries on the host. Its peak counts arguments and results on the host as well, which are taken off
(`compiler/offloading.py` has the evidence). Its transfers are those of the final program, whose text is in the order of
the schedule, replayed at the rate of the device's link: what is not hidden is what the schedule has no cycles of other
work beside.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import SingleDeviceSharding

import shardwright as sw
from shardwright.models import adam, layers
from shardwright.models.gpt import GptSizes, parameters

TARGET, DEVICE = "tpu:v5e:4x4", "tpu-v5e"
SIZES = GptSizes(layers=24, batch=64)
GIB = 2**30
FSDP, BOTH = {"data": 16}, {"data": 4, "model": 4}


@dataclass(frozen=True)
class Case:
    """What is offloaded, and how the step is sharded."""

    name: str
    names: tuple[str, ...]
    moments: str
    mesh: dict[str, int]
    decisions: tuple[str, ...]

    @property
    def key(self) -> str:
        """What its row is known by."""
        return f"{self.name}: {', '.join(self.decisions)}"


def cases() -> list[Case]:
    inputs, more = ("layer_input",), ("layer_input", "attention_output")
    fsdp = (FSDP, ("fsdp:data",))
    mixed = (BOTH, ("fsdp:data", "megatron:model"))
    return [
        Case("nothing", (), "", *fsdp),
        Case("activations", inputs, "", *fsdp),
        Case("more activations", more, "", *fsdp),
        Case("moments", (), "moved", *fsdp),
        Case("moments, behind a barrier", (), "barred", *fsdp),
        Case("moments, layer by layer", (), "by layer", *fsdp),
        Case("both, layer by layer", inputs, "by layer", *fsdp),
        Case("nothing", (), "", *mixed),
        Case("both, layer by layer", inputs, "by layer", *mixed),
    ]


def block(x: jax.Array, layer: Any) -> jax.Array:
    """One transformer block, with names for what could be kept."""
    x = checkpoint_name(x, "layer_input")
    attention = layers.causal_attention(layers.rms_norm(x, layer["attention_norm"]), layer)
    x = x + checkpoint_name(attention, "attention_output")
    return x + layers.feed_forward(layers.rms_norm(x, layer["mlp_norm"]), layer)


def moved_update(params: Any, opt: Any, step: jax.Array, grads: Any) -> tuple[Any, Any]:
    """Adam with moments that live on the host."""
    params, opt = adam.update(params, jax.device_put(opt, jax.memory.Space.Device), step, grads)
    return params, jax.device_put(opt, jax.memory.Space.Host)


def update_by_layer(params: Any, opt: Any, step: jax.Array, grads: Any) -> tuple[Any, Any]:
    """The same, with the layers' parameters and moments updated in place, one layer after the other."""

    def body(i: jax.Array, carried: Any) -> Any:
        (params, opt), here = (
            carried,
            jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, 0), (*carried, layers_grads)),
        )
        new = moved_update(here[0], here[1], step, here[2])
        return jax.tree.map(lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, i, 0), (params, opt), new)

    def parts(tree: Any) -> tuple[Any, Any]:
        return tree["layers"], {name: leaf for name, leaf in tree.items() if name != "layers"}

    layers_params, rest_params = parts(params)
    layers_grads, rest_grads = parts(grads)
    split = {name: parts(moment) for name, moment in opt.items()}
    layers_opt, rest_opt = ({name: pair[k] for name, pair in split.items()} for k in range(2))
    rest_params, rest_opt = moved_update(rest_params, rest_opt, step, rest_grads)
    layers_params, layers_opt = jax.lax.fori_loop(0, SIZES.layers, body, (layers_params, layers_opt))
    joined = {name: {**rest_opt[name], "layers": layers_opt[name]} for name in opt}
    return {**rest_params, "layers": layers_params}, joined


def build(sizes: GptSizes, names: Sequence[str], moments: str) -> tuple[Any, tuple[Any, ...]]:
    """The training step and its arguments."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst="pinned_host",
    )
    remat = (
        jax.checkpoint(block, policy=policy, prevent_cse=False) if names else jax.checkpoint(block, prevent_cse=False)
    )

    def loss(params: Any, batch: Any) -> jax.Array:
        x = layers.embed(batch["tokens"], params["embed"], jnp.dtype(sizes.dtype))
        x, _ = jax.lax.scan(lambda carry, layer: (remat(carry, layer), None), x, params["layers"])
        x = layers.rms_norm(x, params["final_norm"])
        return layers.cross_entropy(jnp.einsum("bsd,vd->bsv", x, params["embed"].astype(x.dtype)), batch["targets"])

    def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        value, grads = jax.value_and_grad(loss)(state["params"], batch)
        params, opt, step = state["params"], state["opt"], state["step"]
        if not moments:
            params, opt = adam.update(params, opt, step, grads)
        elif moments != "by layer":
            if moments == "barred":
                opt, grads = jax.lax.optimization_barrier((opt, grads))
            params, opt = moved_update(params, opt, step, grads)
        else:
            params, opt = update_by_layer(params, opt, step, grads)
        return {"params": params, "opt": opt, "step": step + 1}, value

    ids = jax.ShapeDtypeStruct((sizes.batch, sizes.sequence), jnp.int32)
    state = adam.state(parameters(sizes))
    if moments:
        host = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
        state["opt"] = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=host), state["opt"])
    return train_step, (state, {"tokens": ids, "targets": ids})


def plan_of(case: Case) -> sw.Plan:
    fn, args = build(SIZES, case.names, case.moments)
    return sw.evaluate(fn, *args, mesh=case.mesh, device=DEVICE, decisions=list(case.decisions), donate=0)


def compiled(plan: sw.Plan, keep: Path | None) -> dict[str, Any]:
    verdict = plan.verify(TARGET, timeout_seconds=3600, **({"keep": keep} if keep else {}))
    print(verdict, flush=True)
    names = ("fits", "peak_bytes", "host_bytes", "compute_seconds", "comm_seconds", "step_seconds", "compile_seconds")
    figures = {name: getattr(verdict, name) for name in (*names, "transfer_seconds", "exposed_transfer_seconds")}
    return {**figures, "message": verdict.message, "memory": verdict.figures.get("memory"), "jax": jax.__version__}


def table(rows: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "| on the host | sharded by | device GiB, compiled | estimated | | host GiB, compiled | estimated "
        "| transfers, ms | not hidden, compiled | estimated |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for case in cases():
        row = rows.get(case.key)
        if row is None:
            continue
        if row["peak_bytes"] is None:
            lines.append(f"| {case.name} | {', '.join(case.decisions)} | {row['message']} |")
            continue
        estimate = plan_of(case).estimate
        ratio = estimate.peak_bytes / row["peak_bytes"]
        ratios.append(ratio)
        figures = [
            f"{row['peak_bytes'] / GIB:.2f}",
            f"{estimate.peak_bytes / GIB:.2f}",
            f"{ratio:.2f}",
            f"{row['host_bytes'] / GIB:.2f}",
            f"{estimate.host_bytes / GIB:.2f}",
            f"{1e3 * estimate.transfer_seconds:.0f}",
            f"{1e3 * row['exposed_transfer_seconds']:.0f}",
            f"{1e3 * estimate.exposed_transfer_seconds:.0f}",
        ]
        lines.append(f"| {case.name} | {', '.join(case.decisions)} | {' | '.join(figures)} |")
    left = [case.key for case in cases() if case.key not in rows]
    if left:
        lines += ["", f"Not compiled for this table: {'; '.join(left)}."]
    if ratios:
        off = [abs(ratio - 1) for ratio in ratios]
        lines += ["", f"Estimates of a device's memory are off by {statistics.mean(off):.0%}, at most {max(off):.0%}."]
    return lines


def page(rows: dict[str, dict[str, Any]]) -> str:
    _, *about = (__doc__ or "").split("\n\n")
    about = [part for part in about if not part.startswith("    python")]
    made = f"{date.today()}, shardwright {sw.__version__}, jax {jax.__version__}, Python {platform.python_version()}."
    title = "# Values on the host: the estimate and the TPU compiler"
    how = "Made by `python -m benchmarks.offload`."
    return "\n\n".join([title, *(part.strip() for part in about), "\n".join(table(rows)), f"{made} {how}"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines; what is in there is not compiled again")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder for the compiled programs' text")
    parser.add_argument("--only", help="cases whose name has this")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    if given.rows.exists():
        rows = {row["key"]: row for row in map(json.loads, given.rows.read_text().splitlines())}
    for case in cases():
        if given.no_compile or case.key in rows or (given.only and given.only not in case.key):
            continue
        print(case.key, flush=True)
        keep = given.keep / f"{case.key.replace(' ', '_').replace(':', '')}.hlo.gz" if given.keep else None
        row = {"key": case.key, **dataclasses.asdict(case), **compiled(plan_of(case), keep)}
        rows[case.key] = row
        with given.rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
    text = page(rows)
    if given.write:
        given.write.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

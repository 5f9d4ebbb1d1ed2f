"""Built-in models: programs of real size to partition, written in pure JAX.

Every model is a function that takes an optional ``preset`` and sizes by keyword and returns
``(fn, args, options)``: a plain function, its arguments as pytrees of ``jax.ShapeDtypeStruct`` (nothing
is ever allocated) and ``{"donate": positions}``, the arguments whose buffers the results may reuse::

    fn, args, options = gpt("gemma-2b", batch=64)
    fn, args, options = build("gpt", preset="tiny", scan=False)

Training steps are ``train_step(state, batch) -> (state, loss)`` with ``state = {"params": ...,
"opt": {"m": ..., "v": ...}, "step": ...}``. Every model has the presets "default" (full size) and
"tiny" (runs on a CPU in about a second).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shardwright.errors import TargetError
from shardwright.models.gns import PRESETS as GNS_PRESETS
from shardwright.models.gns import GnsSizes, gns
from shardwright.models.gpt import PRESETS as GPT_PRESETS
from shardwright.models.gpt import GptSizes, gpt
from shardwright.models.itx import PRESETS as ITX_PRESETS
from shardwright.models.itx import ItxSizes, itx
from shardwright.models.mlp import PRESETS as MLP_PRESETS
from shardwright.models.mlp import MlpSizes, mlp
from shardwright.models.model import Model, Program
from shardwright.models.moe import PRESETS as MOE_PRESETS
from shardwright.models.moe import MoeSizes, moe
from shardwright.models.sizes import Sizes, suggestion
from shardwright.models.unet import PRESETS as UNET_PRESETS
from shardwright.models.unet import UnetSizes, unet
from shardwright.models.vit import PRESETS as VIT_PRESETS
from shardwright.models.vit import VitSizes, vit

__all__ = [
    "MODELS",
    "GnsSizes",
    "GptSizes",
    "ItxSizes",
    "MlpSizes",
    "Model",
    "MoeSizes",
    "Program",
    "Sizes",
    "UnetSizes",
    "VitSizes",
    "build",
    "gns",
    "gpt",
    "itx",
    "mlp",
    "moe",
    "unet",
    "vit",
]

_ITX = Model("itx", "Inference transformer: one decoding step with a key-value cache", itx, ITX_PRESETS)

#: Every built-in model by name; "decode" is another name of "itx".
MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "gpt": Model("gpt", "Decoder-only transformer: a training step", gpt, GPT_PRESETS),
        "itx": _ITX,
        "decode": _ITX,
        "unet": Model("unet", "Diffusion U-Net: a training step", unet, UNET_PRESETS),
        "gns": Model("gns", "Graph network simulator: a training step", gns, GNS_PRESETS),
        "moe": Model("moe", "Mixture-of-experts transformer: a training step", moe, MOE_PRESETS),
        "vit": Model("vit", "Vision transformer: a training step of classification", vit, VIT_PRESETS),
        "mlp": Model("mlp", "Multilayer perceptron: a training step of regression", mlp, MLP_PRESETS),
    }
)


def build(name: str, /, **sizes: Any) -> Program:
    """Build the model called ``name`` with an optional ``preset`` and sizes by keyword.

    Raises ``TargetError`` for an unknown name, preset or size and for a size that makes no sense.
    """
    if name not in MODELS:
        raise TargetError(f"There is no model {name!r}; {suggestion(name, MODELS)}")
    return MODELS[name].build(**sizes)

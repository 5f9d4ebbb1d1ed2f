"""Models that others wrote, unchanged: where each is, and what must be installed for it."""

from __future__ import annotations

from dataclasses import dataclass

ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "transformers": ("transformers<5", "flax", "diffusers<0.36"),
    "transformers-4.48": ("transformers==4.48.3", "flax"),
    "keras": ("keras", "keras-hub"),
    "gemma": ("gemma",),
    "tunix": ("google-tunix",),
    "small": ("brax", "diffrax", "distrax", "dm-haiku", "e3nn-jax", "equinox", "flax", "jraph", "numpyro", "pandas"),
    "eqxvision": ("eqxvision",),
    "equimo": ("equimo",),
    "levanter": (
        "levanter>=1.2.dev1644",
        "chex",
        "gitpython",
    ),
    "penzai": ("penzai",),
    "kauldron": ("kauldron",),
}
"""Libraries that install together; Optax, JAX and the TPU compiler come with each."""


@dataclass(frozen=True)
class Model:
    """A model's name for the table, its package, the environment, and the function that returns what to plan."""

    name: str
    package: str
    environment: str
    where: str


MODELS: dict[str, Model] = {
    "bert": Model("BERT-large", "transformers", "transformers", "flax_transformers:bert_large"),
    "gpt2": Model("GPT-2 XL", "transformers", "transformers", "flax_transformers:gpt2_xl"),
    "t5-flax": Model("T5-large", "transformers", "transformers", "flax_transformers:t5_large"),
    "whisper": Model("Whisper large", "transformers", "transformers", "flax_transformers:whisper_large"),
    "clip": Model("CLIP ViT-L/14", "transformers", "transformers", "flax_transformers:clip_large"),
    "vit": Model("ViT-H/14", "transformers", "transformers", "flax_transformers:vit_huge"),
    "llama": Model("Llama 7B", "transformers", "transformers", "flax_transformers:llama_7b"),
    "gemma-flax": Model("Gemma 2B", "transformers", "transformers-4.48", "flax_transformers:gemma_2b"),
    "t5": Model("T5-large", "keras-hub", "keras", "keras_models:t5_large"),
    "mixtral": Model("Mixtral 8×7B", "keras-hub", "keras", "keras_models:mixtral"),
    "convnext": Model("ConvNeXt-XL", "keras", "keras", "keras_models:convnext_xl"),
    "efficientnet": Model("EfficientNetV2-L", "keras", "keras", "keras_models:efficientnet_v2_l"),
    "gemma2": Model("Gemma 2 2B", "gemma", "gemma", "gemma_models:gemma_2_2b"),
    "gemma3": Model("Gemma 3 4B", "gemma", "gemma", "gemma_models:gemma_3_4b"),
    "llama3": Model("Llama 3.2 1B", "google-tunix", "tunix", "tunix_models:llama_3_1b"),
    "qwen3": Model("Qwen 3 8B", "google-tunix", "tunix", "tunix_models:qwen_3_8b"),
    "levanter": Model("Llama 7B", "levanter", "levanter", "levanter_models:llama_7b"),
    "penzai": Model("Gemma 7B", "penzai", "penzai", "penzai_models:gemma_7b"),
    "dino": Model("DINOv2 ViT-g/14", "equimo", "equimo", "equimo_models:dino_giant"),
    "vit-kauldron": Model("ViT-L/16", "kauldron", "kauldron", "kauldron_models:vit"),
    "diffusion": Model("Stable Diffusion 1.5", "diffusers", "transformers", "diffusers_models:stable_diffusion"),
    "ppo": Model("PPO", "brax", "small", "brax_agents:ppo"),
    "humanoid": Model("Humanoids", "brax", "small", "brax_agents:humanoid"),
    "ode": Model("Neural ODE", "diffrax", "small", "diffrax_odes:neural_ode"),
    "molecules": Model("Graph network", "jraph", "small", "jraph_nets:molecules"),
    "resnet": Model("ResNet-152", "dm-haiku", "small", "haiku_nets:resnet_152"),
}
QUICK = ("molecules", "ode")
"""Programs of few ops."""

"""Flax models of Hugging Face's transformers (the last that has them is 4.x), from their configurations alone.

``_do_init=False`` leaves the parameters out of the model; ``jax.eval_shape`` has their shapes without making them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import transformers

from ecosystem.steps import KEY, Planned, array, cross_entropy, tokens, training


def _model(kind: type, config: Any, input_shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A model that computes in bfloat16, and the shapes of its float32 parameters."""
    model = kind(config, input_shape=input_shape, dtype=jnp.bfloat16, _do_init=False)
    return model, jax.eval_shape(lambda key: model.init_weights(key, input_shape), KEY)


def bert_large(layers: int = 24) -> Planned:
    """Masked language modelling with AdamW, batch 64 × 512."""
    config = transformers.BertConfig(
        hidden_size=1024, num_hidden_layers=layers, num_attention_heads=16, intermediate_size=4096
    )
    model, params = _model(transformers.FlaxBertForMaskedLM, config, (1, 512))

    def loss(params: Any, words: Any, labels: Any, key: Any) -> jax.Array:
        return cross_entropy(model(words, params=params, dropout_rng=key, train=True).logits, labels)

    return training(loss, params, tokens(64, 512), tokens(64, 512), KEY)


def gpt2_xl(layers: int = 48) -> Planned:
    """Language modelling with AdamW, batch 16 × 1,024."""
    config = transformers.GPT2Config(n_embd=1600, n_layer=layers, n_head=25)
    model, params = _model(transformers.FlaxGPT2LMHeadModel, config, (1, 1024))

    def loss(params: Any, words: Any, key: Any) -> jax.Array:
        logits = model(words, params=params, dropout_rng=key, train=True).logits
        return cross_entropy(logits[:, :-1], words[:, 1:])

    return training(loss, params, tokens(16, 1024), KEY)


def t5_large() -> Planned:
    """Sequence to sequence with AdamW, batch 64, 512 words in and 128 out."""
    config = transformers.T5Config(d_model=1024, d_kv=64, d_ff=4096, num_layers=24, num_heads=16)
    model, params = _model(transformers.FlaxT5ForConditionalGeneration, config, (1, 512))

    def loss(params: Any, words: Any, target: Any, key: Any) -> jax.Array:
        logits = model(words, decoder_input_ids=target, params=params, dropout_rng=key, train=True).logits
        return cross_entropy(logits[:, :-1], target[:, 1:])

    return training(loss, params, tokens(64, 512), tokens(64, 128), KEY)


def whisper_large(layers: int = 32) -> Planned:
    """Speech to text, forward: 64 clips of 30 seconds, 448 words each."""
    config = transformers.WhisperConfig(
        num_mel_bins=80,
        d_model=1280,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=20,
        decoder_attention_heads=20,
        encoder_ffn_dim=5120,
        decoder_ffn_dim=5120,
    )
    model, params = _model(transformers.FlaxWhisperForConditionalGeneration, config, (1, 80, 3000))

    def logits(params: Any, sound: Any, words: Any) -> jax.Array:
        return model(sound, words, params=params).logits

    return logits, (params, array(64, 80, 3000, dtype=jnp.bfloat16), tokens(64, 448)), {}


def clip_large(layers: int = 12, batch: int = 1024) -> Planned:
    """Contrastive training of CLIP ViT-L/14 with AdamW, 1,024 pictures and texts."""
    config = transformers.CLIPConfig(
        text_config={
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_attention_heads": 12,
            "num_hidden_layers": layers,
        },
        vision_config={
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "num_hidden_layers": 2 * layers,
            "patch_size": 14,
        },
        projection_dim=768,
    )
    shapes = ((1, 77), (1, 224, 224, 3))
    model, params = _model(transformers.FlaxCLIPModel, config, shapes)

    def loss(params: Any, words: Any, pictures: Any, key: Any) -> jax.Array:
        found = model(words, pictures, params=params, dropout_rng=key, train=True)
        labels = jnp.arange(words.shape[0])
        return cross_entropy(found.logits_per_text, labels) + cross_entropy(found.logits_per_image, labels)

    return training(loss, params, tokens(batch, 77), array(batch, 3, 224, 224), KEY)


def vit_huge(layers: int = 32) -> Planned:
    """Classification with AdamW, 256 pictures of 224 × 224."""
    config = transformers.ViTConfig(
        hidden_size=1280, num_hidden_layers=layers, num_attention_heads=16, intermediate_size=5120, patch_size=14
    )
    config.num_labels = 1000
    model, params = _model(transformers.FlaxViTForImageClassification, config, (1, 224, 224, 3))

    def loss(params: Any, pictures: Any, labels: Any, key: Any) -> jax.Array:
        return cross_entropy(model(pictures, params=params, dropout_rng=key, train=True).logits, labels)

    return training(loss, params, array(256, 3, 224, 224), tokens(256), KEY)


def llama_7b() -> Planned:
    """Forward pass of Llama 7B, batch 16 × 2,048."""
    config = transformers.LlamaConfig()
    model, params = _model(transformers.FlaxLlamaForCausalLM, config, (1, 2048))
    params = jax.tree.map(lambda p: array(*p.shape, dtype=jnp.bfloat16), params)

    def logits(params: Any, words: Any) -> jax.Array:
        return model(words, params=params).logits

    return logits, (params, tokens(16, 2048)), {}


def gemma_2b(layers: int = 18) -> Planned:
    """Language modelling of Gemma 2B with plain gradient descent, batch 16 × 2,048."""
    config = transformers.GemmaConfig(
        vocab_size=256_000,
        hidden_size=2048,
        intermediate_size=16384,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=256,
    )
    model, params = _model(transformers.FlaxGemmaForCausalLM, config, (1, 2048))

    def loss(params: Any, words: Any) -> jax.Array:
        logits = model(words, params=params).logits
        return cross_entropy(logits[:, :-1], words[:, 1:])

    return training(loss, params, tokens(16, 2048), optimizer=optax.sgd(1e-3))

"""What a decoder-only model is, as data: the decoder and the devices read this and never a config.json.

A family (`families/`) makes a `ModelSpec` and the list of its tensors from a config; everything that differs
between the models we serve stands here as a value.
"""

from typing import Literal

import msgspec

from ..device.base import Activation

RopeScaling = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]


class RopeSpec(msgspec.Struct, frozen=True):
    """Rotary embedding: `dim` of each head are rotated, halves against halves (neox order).

    `parameters` are the scaling's own numbers under transformers' names (factor, low_freq_factor, ...).
    """

    dim: int
    theta: float
    scaling: RopeScaling = "default"
    original_max_position: int = 0  # positions the model was trained on before the scaling; 0 with "default"
    parameters: tuple[tuple[str, float | tuple[float, ...]], ...] = ()


class ModelSpec(msgspec.Struct, frozen=True):
    family: str
    vocab_size: int  # rows of the embedding, columns of the logits
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    activation: Activation
    rope: RopeSpec
    max_position: int  # the model's own limit on prompt and answer together
    windows: tuple[int | None, ...]  # for each layer: how many positions it looks back, itself included; None: all
    attention_scale: float
    qkv_bias: bool = False
    output_bias: bool = False  # of attention's output projection
    mlp_bias: bool = False
    tied_head: bool = False  # logits use the embedding

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor as the devices want it: `sources` of the checkpoint, concatenated along their rows.

    `[q_proj, k_proj, v_proj]` make `qkv`, `[gate_proj, up_proj]` make `gate_up`; most have one source.
    """

    name: str  # "layers.3.qkv.weight"
    shape: tuple[int, ...]  # of the whole: [out, in] for a matrix
    sources: tuple[str, ...]  # "model.layers.3.self_attn.q_proj.weight", ...


class Description(msgspec.Struct, frozen=True):
    """What a family makes of a config.json: the model, and its tensors in the order in which a slab holds them."""

    spec: ModelSpec
    tensors: tuple[TensorSpec, ...]

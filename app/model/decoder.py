"""The forward pass, written once: every model and every device goes through `forward`.

What differs between models is data (`ModelSpec`); what differs between devices is behind the ops.
"""

from collections.abc import Mapping

from ..device.base import Device, Step, Tensor
from .spec import ModelSpec


def forward(spec: ModelSpec, device: Device, weights: Mapping[str, Tensor], step: Step) -> Tensor:
    """Runs the step's tokens through all layers, writing their K/V; the final hidden states of the rows it wants.

    Returns [R, hidden], normed, ready for `logits`: the rows that are sampled, then those that are scored.
    """
    x = device.embed(step, weights["embed.weight"])  # [T, hidden]
    residual = None
    for layer, window in enumerate(spec.windows):
        name = f"layers.{layer}."
        x, residual = device.norm(x, weights[name + "attention_norm.weight"], spec.norm_eps, residual)
        qkv = device.linear(x, weights[name + "qkv.weight"], weights.get(name + "qkv.bias"))
        q = device.rope_and_cache(step, qkv, layer)  # [T, heads * head_dim]
        x = device.attention(step, q, layer, spec.attention_scale, window)
        x = device.linear(x, weights[name + "output.weight"], weights.get(name + "output.bias"))
        x, residual = device.norm(x, weights[name + "mlp_norm.weight"], spec.norm_eps, residual)
        gate_up, bias = weights[name + "gate_up.weight"], weights.get(name + "gate_up.bias")
        x = device.gated_linear(x, gate_up, spec.activation, bias)  # [T, intermediate]
        x = device.linear(x, weights[name + "down.weight"], weights.get(name + "down.bias"))
    assert residual is not None  # a model has at least one layer
    wanted = device.wanted(step, residual)
    x, _ = device.norm(device.wanted(step, x), weights["norm.weight"], spec.norm_eps, wanted)
    return x


def logits(spec: ModelSpec, device: Device, weights: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """[R, vocab] of the hidden states that `forward` gave."""
    return device.logits(hidden, weights["embed.weight" if spec.tied_head else "head.weight"])

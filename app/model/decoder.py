"""The forward pass, written once: every model and every device goes through `forward`.

What differs between models is data (`ModelSpec`); what differs between devices is behind the ops.
"""

from collections.abc import Mapping

from ..device.base import Batch, Device, Int32, Tensor
from .spec import ModelSpec


def forward(spec: ModelSpec, device: Device, weights: Mapping[str, Tensor], batch: Batch, rows: Int32) -> Tensor:
    """Runs the batch's tokens through all layers, writing their K/V; the final hidden states of `rows`.

    rows: [R] of the T tokens. Returns [R, hidden], normed, ready for `head`.
    """
    step = device.begin(batch)
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
        x = device.linear(x, weights[name + "gate_up.weight"], weights.get(name + "gate_up.bias"))
        x = device.gate(x, spec.activation)  # [T, intermediate]
        x = device.linear(x, weights[name + "down.weight"], weights.get(name + "down.bias"))
    assert residual is not None  # a model has at least one layer
    x, _ = device.norm(device.rows(x, rows), weights["norm.weight"], spec.norm_eps, device.rows(residual, rows))
    return x


def logits(spec: ModelSpec, device: Device, weights: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """[R, vocab] of the hidden states that `forward` gave."""
    return device.logits(hidden, weights["embed.weight" if spec.tied_head else "head.weight"])

"""What the dense decoders share: q, k, v and o projections, a gated MLP, two RMSNorms a layer, neox rotary.

A family file calls `dense` with what is its own; everything here is read the same way by all of them.
"""

from ...device.base import Activation
from ...errors import ModelDataError
from ..config import CONFIG_FILE, LARGEST_INTEGER, Config, read_rope, unsupported
from ..spec import Description, ModelSpec, RopeSpec, TensorSpec

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def dense(
    config: Config,
    *,
    family: str,
    num_kv_heads: int,
    max_position: int,
    windows: tuple[int | None, ...],
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
) -> Description:
    """The description of a dense decoder. `max_position` is the family's default for an absent field."""
    if "quantization_config" in config:
        method = config.table("quantization_config").get("quant_method", "unnamed")
        raise unsupported(f"a checkpoint quantized with {method}")
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if "head_dim" not in config and hidden_size % num_heads:
        raise ModelDataError(
            f"{CONFIG_FILE}: hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}"
        )
    head_dim = config.integer("head_dim", hidden_size // num_heads)
    if head_dim % 2:
        raise ModelDataError(f"{CONFIG_FILE}: head_dim {head_dim} is odd, rotary embedding needs pairs")
    if num_heads % num_kv_heads:
        raise ModelDataError(
            f"{CONFIG_FILE}: num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        )
    activation = config.text("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise unsupported(f"hidden_act {activation!r}")
    limit = config.integer("max_position_embeddings", max_position)
    rope = read_rope(config, head_dim, limit)
    spec = ModelSpec(
        family=family,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=len(windows),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        activation=_ACTIVATIONS[activation],
        rope=rope,
        max_position=_scaled_limit(rope, limit),
        windows=windows,
        attention_scale=head_dim**-0.5,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        tied_head=config.switch("tie_word_embeddings", False),
    )
    return Description(spec, _tensors(spec))


def _scaled_limit(rope: RopeSpec, limit: int) -> int:
    """The positions a model may use: scalings that stretch it say so by their factor, as vLLM reads them.

    llama3 and longrope configs carry the stretched limit in max_position_embeddings already.
    """
    if rope.scaling not in ("linear", "dynamic", "yarn"):
        return limit
    factor = dict(rope.parameters)["factor"]
    assert isinstance(factor, float)
    scaled = int(min(rope.original_max_position * factor, LARGEST_INTEGER))
    if scaled < 1:
        raise ModelDataError(f"{CONFIG_FILE}: a {rope.scaling} rope's factor of {factor:g} leaves no positions")
    return scaled


def _tensors(spec: ModelSpec) -> tuple[TensorSpec, ...]:
    """Every tensor of the model in the order of its use."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    tensors = [TensorSpec("embed.weight", (spec.vocab_size, hidden), ("model.embed_tokens.weight",))]

    def add(name: str, rows: int, columns: int, sources: tuple[str, ...], bias: bool) -> None:
        tensors.append(TensorSpec(f"{name}.weight", (rows, columns), tuple(f"{source}.weight" for source in sources)))
        if bias:
            tensors.append(TensorSpec(f"{name}.bias", (rows,), tuple(f"{source}.bias" for source in sources)))

    for layer in range(spec.num_layers):
        ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
        attention = f"{theirs}.self_attn"
        qkv = tuple(f"{attention}.{part}_proj" for part in "qkv")
        gate_up = (f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj")
        tensors.append(TensorSpec(f"{ours}.attention_norm.weight", (hidden,), (f"{theirs}.input_layernorm.weight",)))
        add(f"{ours}.qkv", spec.q_size + 2 * spec.kv_size, hidden, qkv, spec.qkv_bias)
        add(f"{ours}.output", hidden, spec.q_size, (f"{attention}.o_proj",), spec.output_bias)
        tensors.append(
            TensorSpec(f"{ours}.mlp_norm.weight", (hidden,), (f"{theirs}.post_attention_layernorm.weight",))
        )
        add(f"{ours}.gate_up", 2 * inner, hidden, gate_up, spec.mlp_bias)
        add(f"{ours}.down", hidden, inner, (f"{theirs}.mlp.down_proj",), spec.mlp_bias)
    tensors.append(TensorSpec("norm.weight", (hidden,), ("model.norm.weight",)))
    if not spec.tied_head:
        tensors.append(TensorSpec("head.weight", (spec.vocab_size, hidden), ("lm_head.weight",)))
    return tuple(tensors)

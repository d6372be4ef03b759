"""The records of the CPU library, as kernels/cpu/abi.h lays them out. That file says what each field is.

Apart from what fills them, so that the two files can be read side by side.
"""

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p

ABI = 1

F32, F16, BF16, I8 = range(4)
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}


class Matrix(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("scale", c_void_p),
        ("rows", c_int32),
        ("columns", c_int32),
        ("type", c_int32),
        ("padding", c_int32),
    )


class Cache(ctypes.Structure):
    _fields_ = (
        ("pages", c_void_p),
        ("layers", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rotary_dim", c_int32),
        ("page_size", c_int32),
        ("type", c_int32),
        ("padding", c_int32),
    )


class Embed(ctypes.Structure):
    _fields_ = (("rows", c_void_p), ("tokens", c_void_p), ("out", c_void_p), ("table", Matrix))


class Norm(ctypes.Structure):
    _fields_ = (
        ("rows", c_void_p),
        ("x", c_void_p),
        ("residual", c_void_p),
        ("weight", c_void_p),
        ("out", c_void_p),
        ("columns", c_int32),
        ("eps", c_float),
    )


class Linear(ctypes.Structure):
    _fields_ = (
        ("rows", c_void_p),
        ("x", c_void_p),
        ("bias", c_void_p),
        ("out", c_void_p),
        ("packed", c_void_p),
        ("weight", Matrix),
    )


class GatedLinear(ctypes.Structure):
    _fields_ = (*Linear._fields_, ("activation", c_int32), ("padding", c_int32))


class RopeAndCache(ctypes.Structure):
    _fields_ = (
        ("rows", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("qkv", c_void_p),
        ("q", c_void_p),
        ("cache", Cache),
        ("layer", c_int32),
        ("padding", c_int32),
    )


class Attention(ctypes.Structure):
    _fields_ = (
        ("sequences", c_void_p),
        ("starts", c_void_p),
        ("lengths", c_void_p),
        ("pages", c_void_p),
        ("page_starts", c_void_p),
        ("q", c_void_p),
        ("out", c_void_p),
        ("scratch", c_void_p),
        ("cache", Cache),
        ("layer", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("padding", c_int32),
    )


class Gather(ctypes.Structure):
    _fields_ = (
        ("rows", c_void_p),
        ("indices", c_void_p),
        ("x", c_void_p),
        ("out", c_void_p),
        ("columns", c_int32),
        ("padding", c_int32),
    )


class SampleRow(ctypes.Structure):
    _fields_ = (
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("repetition_penalty", c_double),
        ("frequency_penalty", c_double),
        ("presence_penalty", c_double),
        ("key", c_uint64),
        ("biased", c_void_p),
        ("bias", c_void_p),
        ("context", c_void_p),
        ("output", c_void_p),
        ("banned", c_void_p),
        ("mask", c_void_p),
        ("num_biased", c_int32),
        ("num_context", c_int32),
        ("num_output", c_int32),
        ("num_banned", c_int32),
        ("num_mask", c_int32),
        ("position", c_int32),
        ("top_k", c_int32),
        ("logprobs", c_int32),
    )


class Sample(ctypes.Structure):
    _fields_ = (
        ("rows", c_void_p),
        ("logits", c_void_p),
        ("parameters", c_void_p),
        ("tokens", c_void_p),
        ("logprobs", c_void_p),
        ("top_tokens", c_void_p),
        ("top_logprobs", c_void_p),
        ("scratch", c_void_p),
        ("vocab", c_int32),
        ("most_top", c_int32),
    )


class Score(ctypes.Structure):
    _fields_ = (
        ("rows", c_void_p),
        ("logits", c_void_p),
        ("targets", c_void_p),
        ("logprobs", c_void_p),
        ("top_tokens", c_void_p),
        ("top_logprobs", c_void_p),
        ("top", c_void_p),
        ("scratch", c_void_p),
        ("vocab", c_int32),
        ("most_top", c_int32),
    )


class _Any(ctypes.Union):
    """In the order of their kinds."""

    _fields_ = (
        ("embed", Embed),
        ("norm", Norm),
        ("linear", Linear),
        ("gated_linear", GatedLinear),
        ("rope_and_cache", RopeAndCache),
        ("attention", Attention),
        ("gather", Gather),
        ("sample", Sample),
        ("score", Score),
    )


class Op(ctypes.Structure):
    _anonymous_ = ("any",)
    _fields_ = (("kind", c_int32), ("padding", c_int32), ("any", _Any))


Record = Embed | Norm | Linear | GatedLinear | RopeAndCache | Attention | Gather | Sample | Score
_KINDS = {record: (kind, name) for kind, (name, record) in enumerate(_Any._fields_)}


def op(record: Record) -> Op:
    kind, name = _KINDS[type(record)]
    made = Op(kind)
    setattr(made, name, record)
    return made


# Each function: what it gives, what it takes.
FUNCTIONS = {
    "pl_abi": (c_int32, ()),
    "pl_op_bytes": (c_int32, ()),
    "pl_levels": (c_char_p, ()),
    "pl_open": (c_void_p, (c_int32, c_char_p)),
    "pl_close": (None, (c_void_p,)),
    "pl_packed_bytes": (c_int64, (c_int32, c_int32)),
    "pl_attention_bytes": (c_int64, (POINTER(Cache), c_int32, c_int32, c_int32)),
    "pl_sample_bytes": (c_int64, (c_int32, c_int32)),
    "pl_check": (c_char_p, (POINTER(Op),)),
    "pl_run": (None, (c_void_p, POINTER(Op), c_int32)),
}

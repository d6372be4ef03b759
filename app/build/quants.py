"""GGML's quantized blocks, decoded to float32 by whole arrays of blocks.

Layouts: ggml's ggml-common.h (block_q4_0 and following) and the dequantize_row functions of ggml-quants.c. Each block
is a row of bytes here; the comments give its fields in order.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.uint8]  # [blocks, bytes of a block]
Float32 = NDArray[np.float32]

# encoding -> (elements, bytes) of a block
BLOCKS: dict[str, tuple[int, int]] = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q6_K": (256, 210),
}


def decode_blocks(raw: NDArray[np.uint8], encoding: str) -> Float32:
    """[blocks * bytes] uint8 to [blocks * elements] float32."""
    blocks = raw.reshape(-1, BLOCKS[encoding][1])
    return _DECODERS[encoding](blocks).reshape(-1)


def _half(blocks: Blocks, start: int) -> Float32:
    """The fp16 scale at byte `start` of each block: [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The low halves of the bytes of the last axis, then their high halves."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _q4_0(blocks: Blocks) -> Float32:
    # scale fp16, 16 bytes of nibbles: (q - 8) * scale
    values = _nibbles(blocks[:, 2:]).astype(np.float32)
    values -= 8
    values *= _half(blocks, 0)
    return values


def _q4_1(blocks: Blocks) -> Float32:
    # scale fp16, minimum fp16, 16 bytes of nibbles: q * scale + minimum
    values = _nibbles(blocks[:, 4:]).astype(np.float32)
    values *= _half(blocks, 0)
    values += _half(blocks, 2)
    return values


def _q8_0(blocks: Blocks) -> Float32:
    # scale fp16, 32 signed bytes: q * scale
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= _half(blocks, 0)
    return values


def _q4_k(blocks: Blocks) -> Float32:
    # scale fp16, minimum fp16, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles.
    # Eight groups of 32 numbers: q * (scale * group scale) - minimum * group minimum.
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    scales, minima = scales * _half(blocks, 0), minima * _half(blocks, 2)
    # 32 bytes hold two groups: the low nibbles one, the high nibbles the next
    values = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32).astype(np.float32)
    values *= scales[:, :, None]
    values -= minima[:, :, None]
    return values


def _six_bit_pairs(packed: NDArray[np.uint8]) -> tuple[Float32, Float32]:
    """Eight scales and eight minima of 6 bits from 12 bytes: [blocks, 8] each.

    The first four of each are the low 6 bits of bytes 0-3 and 4-7; of the last four, bytes 8-11 hold 4 bits (scales
    low, minima high) and the top 2 bits of bytes 0-3 and 4-7 the rest.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 0x3F, third & 0x0F | (first >> 6) << 4], axis=1)
    minima = np.concatenate([second & 0x3F, third >> 4 | (second >> 6) << 4], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _q6_k(blocks: Blocks) -> Float32:
    # 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed group scales, scale fp16.
    # Sixteen groups of 16 numbers: (q - 32) * (scale * group scale). Each half of a block (128 numbers) takes 64
    # bytes of nibbles and 32 of pairs; byte i of the pairs serves the numbers i, i + 32, i + 64 and i + 96.
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    values = (low | pairs << 4).reshape(-1, 16, 16).astype(np.float32)
    values -= 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8) * _half(blocks, 208)
    values *= scales[:, :, None]
    return values


_DECODERS: dict[str, Callable[[Any], Float32]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}

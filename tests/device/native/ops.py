"""Single ops of the CPU library over numpy arrays: each is a program of one record, in memory that is watched."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pilotlight.build.encodings import decode, encode, quantize
from pilotlight.device import native_abi as abi
from pilotlight.device.base import Activation, AttentionShape, Batch
from pilotlight.device.native_library import Library

from .memory import buffer, copy

TYPES = {"F32": abi.F32, "F16": abi.F16, "BF16": abi.BF16, "I8": abi.I8}
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


@dataclass
class Weight:
    """A matrix as the library reads it, and what its numbers are."""

    record: abi.Matrix
    values: np.ndarray  # fp32 [rows, columns]
    memory: np.ndarray
    scales: np.ndarray | None = None


def weight(values: np.ndarray, dtype: str) -> Weight:
    if dtype == "I8":
        rows, scales = map(copy, quantize(values))
        record = abi.Matrix(rows.ctypes.data, scales.ctypes.data, *values.shape, abi.I8)
        return Weight(record, rows * scales[:, None], rows, scales)
    memory = copy(encode(values.astype(np.float32), dtype).view(DTYPES[dtype]))
    exact = decode(memory.reshape(-1).view(np.uint8), dtype).astype(np.float32).reshape(values.shape)
    return Weight(abi.Matrix(memory.ctypes.data, None, *values.shape, TYPES[dtype]), exact, memory)


class Ops:
    """Arrays given are copied into buffers of their exact size; what an op leaves in them is given back."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def run(self, record: abi.Record) -> None:
        self.library.program([abi.op(record)]).run()

    def embed(self, tokens: Sequence[int], table: Weight) -> np.ndarray:
        rows, ids = _count(tokens), copy(tokens, np.int32)
        out = buffer((len(tokens), table.record.columns))
        self.run(abi.Embed(_at(rows), _at(ids), _at(out), table.record))
        return out

    def norm(
        self, x: np.ndarray, factors: np.ndarray, eps: float, residual: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The normed rows, and the sums."""
        rows, x, factors, out = _count(x), copy(x), copy(factors), buffer(x.shape)
        total = x if residual is None else copy(residual)
        added = None if residual is None else _at(total)
        self.run(abi.Norm(_at(rows), _at(x), added, _at(factors), _at(out), x.shape[1], eps))
        return out, total

    def linear(self, x: np.ndarray, matrix: Weight, bias: np.ndarray | None = None) -> np.ndarray:
        rows, x, out = _count(x), copy(x), buffer((len(x), matrix.record.rows))
        bias = None if bias is None else copy(bias)
        packed = self._packed(x)
        self.run(abi.Linear(_at(rows), _at(x), _at(bias), _at(out), _at(packed), matrix.record))
        return out

    def gated_linear(
        self, x: np.ndarray, matrix: Weight, activation: Activation, bias: np.ndarray | None = None
    ) -> np.ndarray:
        rows, x, out = _count(x), copy(x), buffer((len(x), matrix.record.rows // 2))
        bias = None if bias is None else copy(bias)
        packed = self._packed(x)
        linear = _at(rows), _at(x), _at(bias), _at(out), _at(packed), matrix.record
        self.run(abi.GatedLinear(*linear, abi.ACTIVATIONS[activation]))
        return out

    def gather(self, x: np.ndarray, indices: Sequence[int]) -> np.ndarray:
        rows, x, ids = _count(indices), copy(x), copy(indices, np.int32)
        out = buffer((len(indices), x.shape[1]))
        self.run(abi.Gather(_at(rows), _at(ids), _at(x), _at(out), x.shape[1]))
        return out

    def _packed(self, x: np.ndarray) -> np.ndarray:
        return buffer(self.library.packed_bytes(*x.shape), np.uint8)


class Pages:
    """K/V pages, and the two ops that use them."""

    def __init__(
        self, ops: Ops, shape: AttentionShape, num_pages: int, dtype: str, cos: np.ndarray, sin: np.ndarray
    ) -> None:
        self._ops, self._shape = ops, shape
        self._cos, self._sin = copy(cos), copy(sin)
        page = shape.num_layers * shape.num_kv_heads * 2 * shape.page_size * shape.head_dim
        self._memory = buffer((num_pages, page), DTYPES[dtype])
        self._memory[...] = _stored(np.array([np.nan], np.float32), dtype)
        self._dtype = dtype
        self.record = abi.Cache(
            _at(self._memory),
            shape.num_layers,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.rotary_dim,
            shape.page_size,
            TYPES[dtype],
        )

    def contents(self) -> np.ndarray:
        """fp32 [pages, layers, 2 * kv_heads, page_size, head_dim], keys first, as the numpy device has them."""
        shape = self._shape
        values = decode(self._memory.reshape(-1).view(np.uint8), self._dtype).astype(np.float32)
        tiles = values.reshape(len(self._memory), shape.num_layers, shape.num_kv_heads, 2, -1)
        keys = tiles[..., 0, :].reshape(*tiles.shape[:3], shape.head_dim, shape.page_size).swapaxes(3, 4)
        return np.concatenate([keys, tiles[..., 1, :].reshape(keys.shape)], axis=2)

    def fill(self, contents: np.ndarray) -> np.ndarray:
        """Writes such `contents`; gives them as they are in the pages' dtype."""
        keys, values = np.split(contents, 2, axis=2)
        tiles = np.stack([keys.swapaxes(3, 4).reshape(*keys.shape[:3], -1), values.reshape(*keys.shape[:3], -1)], 3)
        with np.errstate(invalid="ignore"):
            stored = _stored(tiles, self._dtype)
        self._memory[...] = stored.reshape(self._memory.shape)
        return self.contents()

    def rope_and_cache(self, batch: Batch, qkv: np.ndarray, layer: int) -> np.ndarray:
        rows, qkv = _count(batch.tokens), copy(qkv)
        positions, slots = copy(batch.positions), copy(batch.slots)
        q = buffer((len(qkv), self._shape.num_heads * self._shape.head_dim))
        where = _at(rows), _at(positions), _at(slots), _at(self._cos), _at(self._sin)
        self._ops.run(abi.RopeAndCache(*where, _at(qkv), _at(q), self.record, layer))
        return q

    def attention(self, batch: Batch, q: np.ndarray, layer: int, scale: float, window: int | None) -> np.ndarray:
        sequences, q = _count(batch.lengths), copy(q)
        arrays = [copy(each) for each in (batch.starts, batch.lengths, batch.pages, batch.page_starts)]
        out = buffer(q.shape)
        longest = int(batch.lengths.max())
        nbytes = self._ops.library.attention_bytes(self.record, len(q), len(batch.lengths), longest)
        scratch = buffer(nbytes, np.uint8)
        where = _at(sequences), *map(_at, arrays), _at(q), _at(out), _at(scratch)
        self._ops.run(abi.Attention(*where, self.record, layer, window or 0, scale))
        return out


def _stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounded to nearest; a NaN stays one."""
    if dtype != "BF16":
        return values.astype(DTYPES[dtype])
    bits = values.astype(np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def _at(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data


def _count(rows: Sequence[int] | np.ndarray) -> np.ndarray:
    return copy([len(rows)], np.int32)

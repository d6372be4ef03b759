"""K/V pages in host memory, the rotary op that fills them and the attention that reads them, with numpy.

Layout: the pool is [pages, layers, 2 * kv_heads, page_size, head_dim] fp32, keys before values: one page holds all
layers of its 16 tokens, so that memory is touched as pages come into use. The innermost [page_size, head_dim] is a
*tile*. Attention gathers the tiles of its sequences with one `take`, ordered so that batched matrix products can
run over (head, sequence); nothing loops over tokens or heads.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .base import AttentionShape, Batch, Float32, Sampled

Index = NDArray[np.intp]

_QUERY_BLOCK = 32  # tokens of a prompt that are scored at once: their scores stay in the cache
# Sequences of a decode step share a gather, padded to the longest of them. A group costs about what reading a dozen
# pages does; small gathers stay in the cache until they are multiplied.
_PADDING_PAGES = 12
_PADDING_SHARE = 4  # or a quarter of the longest
_GATHER_BYTES = 8 << 20


@dataclass(slots=True)
class Group:
    """G sequences of a decode step that are attended to together, padded to P pages."""

    rows: Index  # [G] of the batch
    tiles: Index  # [2 * kv_heads, G, P] in layer 0
    unseen: NDArray[np.bool_]  # [1, G, 1, P * page_size] positions that the query does not see
    unseen_rows: Index  # the same, as indices into [G * P * page_size]


@dataclass(slots=True)
class Prompt:
    """A sequence of a prefill step."""

    start: int  # its first new token in the batch
    end: int
    position: int  # of that token
    tiles: Index  # [2 * kv_heads, P] in layer 0


@dataclass(slots=True)
class Step:
    """One step's metadata, made once and used by every layer."""

    batch: Batch
    cos: Float32  # [T, 1, 1, rotary_dim / 2]
    sin: Float32  # [T, 1, 2, rotary_dim / 2], the first half negated
    kept: Index  # tokens whose K/V are written
    slots: Index  # [2 * kv_heads, kept] rows of head_dim in the pool, in layer 0
    groups: dict[int | None, list[Group]]  # of a decode step, by window
    prompts: list[Prompt]  # of a prefill step
    sampled: Sampled  # so far

    @property
    def samples(self) -> int:
        return len(self.batch.sample_rows)


class PagedAttention:
    """The K/V pool of all layers and what works on it."""

    def __init__(self, shape: AttentionShape, num_pages: int, cos: Float32, sin: Float32) -> None:
        """cos, sin: [max_model_len, rotary_dim / 2]. The pool takes no memory before it is written."""
        self._shape = shape
        self._tiles_per_layer = 2 * shape.num_kv_heads
        self._tiles_per_page = shape.num_layers * self._tiles_per_layer
        self._heads = np.arange(self._tiles_per_layer)[:, None]
        self._tiles = np.zeros((num_pages * self._tiles_per_page, shape.page_size * shape.head_dim), np.float32)
        self._rows = self._tiles.reshape(-1, shape.head_dim)
        self._cos = cos
        self._sin = np.stack([-sin, sin], axis=1)
        self._scratch = np.empty(0, np.float32)

    def pages(self) -> Float32:
        """The pool: [pages, layers, 2 * kv_heads, page_size, head_dim]."""
        shape = self._shape
        return self._tiles.reshape(-1, shape.num_layers, self._tiles_per_layer, shape.page_size, shape.head_dim)

    def begin(self, batch: Batch) -> Step:
        size = self._shape.page_size
        kept = np.flatnonzero(batch.slots >= 0)
        page, offset = np.divmod(batch.slots[kept].astype(np.intp), size)
        return Step(
            batch=batch,
            cos=self._cos[batch.positions][:, None, None],
            sin=self._sin[batch.positions][:, None],
            kept=kept,
            slots=(page * self._tiles_per_page + self._heads) * size + offset,
            groups={},
            prompts=[] if batch.is_decode else self._prompts(batch),
            sampled=Sampled([], [], []),
        )

    def rope_and_cache(self, step: Step, qkv: Float32, layer: int) -> Float32:
        """qkv: [T, (heads + 2 kv_heads) * head_dim]. Returns q, rotated: [T, heads, head_dim]."""
        shape = self._shape
        heads, rotated, half = shape.num_heads, shape.num_heads + shape.num_kv_heads, shape.rotary_dim // 2
        x = qkv.reshape(len(qkv), -1, shape.head_dim)
        y = np.empty(x.shape, np.float32)
        halves, turned = (
            heads_of[:, :rotated, : 2 * half].reshape(len(x), rotated, 2, half, copy=False) for heads_of in (x, y)
        )
        np.multiply(halves, step.cos, out=turned)
        turned += halves[:, :, ::-1] * step.sin
        y[:, :rotated, 2 * half :] = x[:, :rotated, 2 * half :]
        y[:, rotated:] = x[:, rotated:]
        slots = step.slots + layer * self._tiles_per_layer * shape.page_size
        self._rows[slots] = y[step.kept, heads:].swapaxes(0, 1)
        return y[:, :heads]

    def attend(self, step: Step, q: Float32, layer: int, scale: float, window: int | None) -> Float32:
        """q: [T, heads, head_dim]. Returns [T, heads * head_dim]."""
        shape = self._shape
        q = q.reshape(len(q), shape.num_kv_heads, -1, shape.head_dim) * np.float32(scale)
        out = np.empty(q.shape, np.float32)
        if step.batch.is_decode:
            if window not in step.groups:
                step.groups[window] = self._groups(step.batch, window)
            for group in step.groups[window]:
                out[group.rows] = self._attend_group(group, q[group.rows], layer)
        else:
            for prompt in step.prompts:
                tokens = slice(prompt.start, prompt.end)
                self._attend_prompt(prompt, q[tokens], layer, window, out[tokens])
        return out.reshape(len(q), -1)

    # --- decode: one query a sequence ---------------------------------------------------------------------

    def _groups(self, batch: Batch, window: int | None) -> list[Group]:
        """Sequences of similar length together, the longest first."""
        size = self._shape.page_size
        lengths = batch.lengths.astype(np.intp)
        seen_from = np.zeros_like(lengths) if window is None else np.maximum(lengths - window, 0)
        first = seen_from // size
        counts = -(-lengths // size) - first
        order = np.argsort(-counts, kind="stable")
        page_bytes = self._tiles_per_layer * self._tiles.shape[1] * 4
        groups = []
        start = 0
        while start < len(order):
            longest = int(counts[order[start]])
            least = longest - max(_PADDING_PAGES, longest // _PADDING_SHARE)
            end = int(np.searchsorted(-counts[order], -least, side="right"))
            end = min(end, start + max(1, _GATHER_BYTES // (longest * page_bytes)))
            rows = order[start:end]
            columns = first[rows, None] + np.arange(longest)  # [G, P] of the page table
            held = np.diff(batch.page_starts)[rows, None]
            pages = batch.pages[batch.page_starts[rows, None] + np.minimum(columns, held - 1)].astype(np.intp)
            positions = first[rows, None] * size + np.arange(longest * size)
            unseen = (positions >= lengths[rows, None]) | (positions < seen_from[rows, None])
            tiles = pages * self._tiles_per_page + self._heads[:, None]
            groups.append(Group(rows, tiles, unseen[None, :, None], np.flatnonzero(unseen)))
            start = end
        return groups

    def _attend_group(self, group: Group, q: Float32, layer: int) -> Float32:
        """q: [G, kv_heads, queries, head_dim], scaled. Returns the same shape."""
        kv_heads, dim = self._shape.num_kv_heads, self._shape.head_dim
        kv = self._gather(group.tiles, layer).reshape(2, kv_heads, len(q), -1, dim)
        # What lies in unseen places is anything, a NaN even, and 0 * NaN is NaN: so values are cleared as well.
        kv[1].reshape(kv_heads, -1, dim)[:, group.unseen_rows] = 0
        scores = np.ascontiguousarray(q.swapaxes(0, 1)) @ kv[0].swapaxes(2, 3)  # [kv_heads, G, queries, positions]
        np.copyto(scores, -np.inf, where=group.unseen)
        return _softmax_times(scores, kv[1]).swapaxes(0, 1)

    # --- prefill: many queries a sequence -----------------------------------------------------------------

    def _prompts(self, batch: Batch) -> list[Prompt]:
        prompts = []
        for index in range(len(batch.lengths)):
            start, end = batch.starts[index : index + 2].tolist()
            pages = batch.pages[slice(*batch.page_starts[index : index + 2])].astype(np.intp)
            tiles = pages * self._tiles_per_page + self._heads
            prompts.append(Prompt(start, end, int(batch.positions[start]), tiles))
        return prompts

    def _attend_prompt(self, prompt: Prompt, q: Float32, layer: int, window: int | None, out: Float32) -> None:
        """q, out: [tokens of the prompt, kv_heads, queries, head_dim]. Each block of tokens reads what it can see."""
        kv_heads, dim = self._shape.num_kv_heads, self._shape.head_dim
        kv = self._gather(prompt.tiles, layer).reshape(2, kv_heads, -1, dim)
        for start in range(0, len(q), _QUERY_BLOCK):
            block = q[start : start + _QUERY_BLOCK].transpose(1, 2, 0, 3)  # [kv_heads, queries, tokens, head_dim]
            tokens = block.shape[2]
            position = prompt.position + start
            seen_from = 0 if window is None else max(0, position - window + 1)
            keys, values = kv[:, :, seen_from : position + tokens]
            scores = block.reshape(kv_heads, -1, dim) @ keys.swapaxes(1, 2)
            _hide(scores.reshape(kv_heads, -1, tokens, scores.shape[-1]), position - seen_from, window)
            mixed = _softmax_times(scores, values).reshape(block.shape)
            out[start : start + tokens] = mixed.transpose(2, 0, 1, 3)

    def _gather(self, tiles: Index, layer: int) -> Float32:
        """The tiles of a layer, [*tiles.shape, page_size * head_dim]: valid until the next gather."""
        count = tiles.size * self._tiles.shape[1]
        if self._scratch.size < count:
            self._scratch = np.empty(count, np.float32)
        out = self._scratch[:count].reshape(*tiles.shape, -1)
        # "clip" writes straight into `out`; every index is valid.
        return np.take(self._tiles, tiles + layer * self._tiles_per_layer, axis=0, out=out, mode="clip")


def _hide(scores: Float32, position: int, window: int | None) -> None:
    """-inf where a token would see a later one, or one that its window has left behind.

    scores: [..., tokens, positions]; the first token's own position is column `position`. Only the last and the first
    columns, as many as there are tokens, can be hidden from some and not from all.
    """
    tokens = scores.shape[-2]
    later = np.triu(np.ones((tokens, tokens), np.bool_), 1)
    np.copyto(scores[..., position:], -np.inf, where=later)
    if window is not None:
        first = scores[..., : min(tokens, scores.shape[-1])]
        age = position + np.arange(tokens)[:, None] - np.arange(first.shape[-1])
        np.copyto(first, -np.inf, where=age >= window)


def _softmax_times(scores: Float32, values: Float32) -> Float32:
    """softmax(scores) @ values; `scores` are overwritten."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed = scores @ values
    mixed /= scores.sum(axis=-1, keepdims=True)
    return mixed

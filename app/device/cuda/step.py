"""A step's metadata on the GPU: int32 arrays side by side, written in page-locked memory and brought by one copy.

    tokens | positions | slots | rows | lengths | blocks (prefill) | page table, [sequences, stride]

The places of a decode step do not depend on its size, nor a row of the page table on a sequence's length: a captured
graph finds everything where it was.
"""

from dataclasses import dataclass

import numpy as np

from ..base import AttentionShape, Batch, Int32, StepShape
from . import attention_prefill, driver
from .attention_prefill import Blocks
from .memory import HostBuffer

_WORD = 4  # bytes
_ALIGNMENT = 4  # words, of each array: kernels read blocks 16 bytes at a time


@dataclass(frozen=True, slots=True)
class Step:
    """One step, as the ops see it. Addresses are the device's."""

    count: int  # tokens
    sequences: int
    wanted: Int32  # the tokens whose hidden states are wanted: those that are sampled, then those that are scored
    blocks: Blocks | None  # of prefill attention; None: every sequence has one new token
    tokens: int  # [count]
    positions: int  # [count]
    slots: int  # [count]
    rows: int  # [len(wanted)], `wanted`
    lengths: int  # [sequences]
    block_table: int  # [len(blocks.table), 4]
    page_table: int  # [sequences, stride]


class Metadata:
    """The two places, on the host and at `address` on the device, that every step uses anew."""

    def __init__(self, shape: AttentionShape, step: StepShape, address: int) -> None:
        self.stride = table_stride(shape, step)
        self._largest = step
        self._address = address
        self._buffer = HostBuffer(metadata_words(shape, step) * _WORD)
        self._words = np.frombuffer(self._buffer.view, np.int32)
        self._copied = driver.create_event()

    def close(self) -> None:
        driver.destroy_event(self._copied)
        self._buffer.close()

    def upload(self, batch: Batch, blocks: Blocks | None, stream: driver.Stream) -> Step:
        """Enqueues the copy of what a step needs to know. Waits only while the last step's copy is to be made."""
        count, sequences = len(batch.tokens), len(batch.lengths)
        wanted = np.concatenate([batch.sample_rows, batch.score_rows])
        driver.synchronize_event(self._copied)
        end = 0

        def put(values: Int32, room: int) -> int:
            """Writes an array behind the last one; its address on the device."""
            nonlocal end
            start, end = end, end + room + -room % _ALIGNMENT
            self._words[start : start + values.size] = values.reshape(-1)
            return self._address + start * _WORD

        room = count if blocks else self._largest.num_seqs
        step = Step(
            count=count,
            sequences=sequences,
            wanted=wanted,
            blocks=blocks,
            tokens=put(batch.tokens, room),
            positions=put(batch.positions, room),
            slots=put(batch.slots, room),
            rows=put(wanted, room),
            lengths=put(batch.lengths, sequences if blocks else room),
            block_table=put(blocks.table, blocks.table.size) if blocks else 0,
            page_table=self._address + end * _WORD,
        )
        table = self._words[end : end + sequences * self.stride].reshape(sequences, self.stride)
        table[:, : batch.pages.shape[1]] = batch.pages
        end += table.size
        driver.copy_to_device(self._address, self._buffer.address, end * _WORD, stream)
        driver.record_event(self._copied, stream)
        return step


def table_stride(shape: AttentionShape, step: StepShape) -> int:
    """Entries of a sequence's row of the page table: as many as its longest context has pages."""
    return -(-step.max_length // shape.page_size)


def metadata_words(shape: AttentionShape, step: StepShape) -> int:
    """int32 numbers that the largest step's metadata takes."""
    group = shape.num_heads // shape.num_kv_heads
    blocks = attention_prefill.most_blocks(group, step.num_tokens, step.num_seqs)
    arrays = [step.num_tokens] * 4 + [step.num_seqs, 4 * blocks, step.num_seqs * table_stride(shape, step)]
    return sum(size + -size % _ALIGNMENT for size in arrays)

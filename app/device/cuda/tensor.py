"""What the CUDA device hands out as tensors: where they lie, and their shapes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in device memory: [rows, width] half, or fp32 [splits, rows, width], which the next op adds up."""

    address: int
    rows: int
    width: int
    splits: int = 0


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [rows, width], or a vector of `rows`."""

    address: int
    rows: int
    width: int

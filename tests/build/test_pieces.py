"""A source tensor is read in chunks and comes out whole, whatever the chunk's size."""

import os
from pathlib import Path

import numpy as np
import pytest

from pilotlight.build import pieces
from pilotlight.build.pieces import Piece
from pilotlight.device.layout import WeightDtype
from pilotlight.errors import ModelDataError
from tests.build.gguf_files import dequantized, permute
from tests.build.test_encodings import random_blocks


def recoded(piece: Piece, dtype: WeightDtype) -> tuple[bytes, int]:
    """The bytes, and in how many chunks they came."""
    with open(piece.file, "rb") as stream:
        chunks = [chunk.tobytes() for chunk in piece.recode(stream.fileno(), dtype)]
    return b"".join(chunks), len(chunks)


@pytest.fixture
def matrix() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((24, 64)).astype(np.float32)


@pytest.mark.parametrize("elements", [1, 64, 200, 10**6])
def test_chunks_join_to_the_whole(
    elements: int, matrix: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "CHUNK_ELEMENTS", elements)
    (tmp_path / "f").write_bytes(b"....." + matrix.tobytes() + b"...")
    raw, chunks = recoded(Piece(tmp_path / "f", "a", "F32", (24, 64), 5), "F32")
    assert raw == matrix.tobytes()
    assert chunks == {1: 24, 64: 24, 200: 8, 10**6: 1}[elements]
    halves, _ = recoded(Piece(tmp_path / "f", "a", "F32", (24, 64), 5), "F16")
    assert halves == matrix.astype(np.float16).tobytes()


@pytest.mark.parametrize("elements", [1, 300, 10**6])
@pytest.mark.parametrize("heads", [1, 3, 12])
def test_paired_heads_are_put_back_in_every_chunk(
    elements: int, heads: int, matrix: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "CHUNK_ELEMENTS", elements)
    (tmp_path / "f").write_bytes(permute(matrix, heads).tobytes())
    raw, _ = recoded(Piece(tmp_path / "f", "a", "F32", (24, 64), 0, paired_heads=heads), "F32")
    np.testing.assert_array_equal(np.frombuffer(raw, np.float32).reshape(24, 64), matrix)


def test_paired_vector(tmp_path: Path) -> None:
    vector = np.arange(24, dtype=np.float32)
    (tmp_path / "f").write_bytes(permute(vector, 3).tobytes())
    raw, _ = recoded(Piece(tmp_path / "f", "a", "F32", (24,), 0, paired_heads=3), "F32")
    assert np.frombuffer(raw, np.float32).tolist() == list(range(24))


@pytest.mark.parametrize("encoding", ["Q4_0", "Q8_0"])
def test_quantized_rows(encoding: str, matrix: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    monkeypatch.setattr(pieces, "CHUNK_ELEMENTS", 150)
    blocks = gguf.quantize(matrix, gguf.GGMLQuantizationType[encoding])
    (tmp_path / "f").write_bytes(blocks.tobytes())
    raw, chunks = recoded(Piece(tmp_path / "f", "a", encoding, (24, 64), 0), "F32")
    assert chunks == 12
    np.testing.assert_array_equal(np.frombuffer(raw, np.float32).reshape(24, 64), dequantized(matrix, encoding))


@pytest.mark.parametrize("encoding", ["Q4_K", "Q6_K"])
def test_quantized_rows_of_256(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    monkeypatch.setattr(pieces, "CHUNK_ELEMENTS", 1100)
    blocks = random_blocks(encoding, 20)  # 10 rows of 512
    (tmp_path / "f").write_bytes(blocks.tobytes())
    raw, chunks = recoded(Piece(tmp_path / "f", "a", encoding, (10, 512), 0), "F32")
    assert chunks == 5
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[encoding])
    np.testing.assert_array_equal(np.frombuffer(raw, np.float32), expected.reshape(-1))


def test_equal_encoding_is_copied_bit_by_bit(tmp_path: Path) -> None:
    """A NaN's payload and the sign of zero too: nothing is decoded."""
    bits = np.array([0x7FC1, 0x8000, 0x0001], np.uint16)
    (tmp_path / "f").write_bytes(bits.tobytes())
    assert recoded(Piece(tmp_path / "f", "a", "BF16", (3,), 0), "BF16")[0] == bits.tobytes()


def test_empty_tensor(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    assert recoded(Piece(tmp_path / "f", "a", "F16", (0, 8), 0), "F32")[0] == b""
    assert recoded(Piece(tmp_path / "f", "a", "F16", (8, 0), 0), "F32")[0] == b""


@pytest.mark.parametrize(
    ("value", "reason"), [(70000.0, "holds 70000, which is more than F16"), (np.nan, "holds NaN")]
)
def test_number_that_does_not_fit_names_file_and_tensor(value: float, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(np.array([1, value], np.float32).tobytes())
    with pytest.raises(ModelDataError, match=rf"^{file}: tensor 'layer\.9' {reason}.*choose another --dtype"):
        recoded(Piece(file, "layer.9", "F32", (2,), 0), "F16")


def test_file_that_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "CHUNK_ELEMENTS", 16)
    file = tmp_path / "f"
    file.write_bytes(bytes(4 * 64))
    piece = Piece(file, "a", "F32", (64,), 0)
    with open(file, "rb") as stream:
        chunks = piece.recode(stream.fileno(), "F32")
        next(chunks)
        os.truncate(file, 100)
        with pytest.raises(ModelDataError, match="tensor 'a' is cut: the file became shorter"):
            list(chunks)

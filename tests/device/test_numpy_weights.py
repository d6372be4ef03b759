"""Weights in place: what is mapped, what is copied, what is widened, and a file that is not what it was."""

import numpy as np
import pytest

from pilotlight.device.layout import Extent, Layout, Placed
from pilotlight.device.numpy_weights import load_weights, loaded_bytes
from pilotlight.errors import ModelDataError

MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)


def layout_of(file, *tensors, extents=None):
    """Tensors (name, array, dtype) one after the other in a file; one extent, or those given."""
    placed, offset, data = [], 0, b""
    for name, array, dtype in tensors:
        placed.append(Placed(name, array.shape, dtype, offset, array.nbytes))
        offset += array.nbytes
        data += array.tobytes()
    file.write_bytes(b"header--" + data)
    return Layout(tuple(placed), extents or (Extent(file, 8, offset, 0),), offset)


def backing(array):
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def is_mapped(array):
    """Whether the array's memory is a mapping and no copy: numpy owns none of it."""
    return not isinstance(backing(array), np.ndarray)


def test_fp32_in_one_piece_is_mapped(tmp_path):
    layout = layout_of(tmp_path / "w", ("a", MATRIX, "F32"), ("b", MATRIX[0] + 100, "F32"))
    weights = load_weights(layout)
    np.testing.assert_array_equal(weights["a"], MATRIX)
    np.testing.assert_array_equal(weights["b"], MATRIX[0] + 100)
    assert all(is_mapped(tensor) for tensor in weights.values())
    assert loaded_bytes(layout) == 4 * 16


def test_a_mapped_tensor_shows_the_file(tmp_path):
    """The proof that nothing was copied: what is written to the file later is seen."""
    file = tmp_path / "w"
    weights = load_weights(layout_of(file, ("a", MATRIX, "F32")))
    with open(file, "r+b") as stream:
        stream.seek(8)
        stream.write(np.float32(77).tobytes())
    assert weights["a"][0, 0] == 77


def test_weights_are_read_only(tmp_path):
    layout = layout_of(tmp_path / "w", ("a", MATRIX, "F32"), ("b", MATRIX.astype(np.float16), "F16"))
    for tensor in load_weights(layout).values():
        with pytest.raises(ValueError, match="read-only"):
            tensor[0, 0] = 1


def test_a_tensor_from_several_files_is_put_together(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"...." + MATRIX[:1].tobytes())
    second.write_bytes(MATRIX[1:].tobytes() + b"....")
    extents = (Extent(second, 0, 32, 16), Extent(first, 4, 16, 0))  # in any order
    layout = Layout((Placed("a", (3, 4), "F32", 0, 48),), extents, 48)
    weights = load_weights(layout)
    np.testing.assert_array_equal(weights["a"], MATRIX)
    assert not is_mapped(weights["a"])


def test_gaps_in_the_slab_and_tensors_in_any_order(tmp_path):
    file = tmp_path / "w"
    file.write_bytes(MATRIX.tobytes() + MATRIX[0].tobytes())
    tensors = (Placed("b", (4,), "F32", 256, 16), Placed("a", (3, 4), "F32", 0, 48))
    weights = load_weights(Layout(tensors, (Extent(file, 0, 48, 0), Extent(file, 48, 16, 256)), 272))
    np.testing.assert_array_equal(weights["a"], MATRIX)
    np.testing.assert_array_equal(weights["b"], MATRIX[0])


def test_fp32_at_an_odd_place_is_copied(tmp_path):
    file = tmp_path / "w"
    file.write_bytes(b"odd" + MATRIX.tobytes())
    weights = load_weights(Layout((Placed("a", (3, 4), "F32", 0, 48),), (Extent(file, 3, 48, 0),), 48))
    np.testing.assert_array_equal(weights["a"], MATRIX)
    assert weights["a"].flags.aligned


HALVES = np.array([0.0, -0.0, 1.0, -2.5, 6e-8, 65504.0, np.inf, -np.inf, np.nan], np.float16)


def test_fp16_is_widened(tmp_path):
    layout = layout_of(tmp_path / "w", ("a", HALVES, "F16"))
    (found,) = load_weights(layout).values()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, HALVES.astype(np.float32))
    assert loaded_bytes(layout) == 2 * HALVES.nbytes


def test_bf16_is_widened(tmp_path):
    """Each bf16 is the upper half of the fp32 that it stands for."""
    bits = np.array([0x0000, 0x8000, 0x3F80, 0xC020, 0x7F80, 0x0001, 0x7F7F], np.uint16)
    layout = layout_of(tmp_path / "w", ("a", bits, "BF16"))
    (found,) = load_weights(layout).values()
    expected = [0.0, -0.0, 1.0, -2.5, np.inf, 2.0**-133, (2 - 2**-7) * 2.0**127]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    assert np.signbit(found[1])


def test_a_half_precision_tensor_larger_than_a_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("pilotlight.device.numpy_weights._PIECE_BYTES", 8)
    values = np.arange(1000, dtype=np.float16).reshape(10, 100)
    (found,) = load_weights(layout_of(tmp_path / "w", ("a", values, "F16"))).values()
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_H15_a_file_that_was_cut_after_its_header_was_read(dtype, tmp_path):
    file = tmp_path / "w"
    name = "F32" if dtype is np.float32 else "F16"
    layout = layout_of(file, ("a", MATRIX.astype(dtype), name), ("b", MATRIX.astype(dtype), name))
    with open(file, "r+b") as stream:
        stream.truncate(file.stat().st_size - 1)
    with pytest.raises(
        ModelDataError, match=rf"{file}: has \d+ bytes, its tensors end at byte \d+ or later; it was cut"
    ):
        load_weights(layout)


def test_H15_a_file_that_was_emptied(tmp_path):
    file = tmp_path / "w"
    layout = layout_of(file, ("a", MATRIX, "F32"))
    file.write_bytes(b"")
    with pytest.raises(ModelDataError, match=rf"{file}: has 0 bytes"):
        load_weights(layout)


def test_H15_a_file_that_is_gone(tmp_path):
    file = tmp_path / "w"
    layout = layout_of(file, ("a", MATRIX, "F32"))
    file.unlink()
    with pytest.raises(ModelDataError, match=rf"{file}: cannot be read: No such file"):
        load_weights(layout)


def test_int8_is_widened_and_scaled(tmp_path):
    rows = np.array([[127, -127, 0], [1, 2, 3]], np.int8)
    scales = np.array([0.5, 0.25], np.float32)
    layout = layout_of(
        tmp_path / "w", ("a", rows, "I8"), ("filler", np.zeros(2, np.int8), "I8"), ("a.scale", scales, "F32")
    )
    found = load_weights(layout)
    np.testing.assert_array_equal(found["a"], [[63.5, -63.5, 0], [0.25, 0.5, 0.75]])
    assert "a.scale" not in found
    assert not found["a"].flags.writeable

"""A directory's layout: each tensor's bytes are found where they lie, and whatever is wrong is named."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pilotlight.build.snapshot import build_snapshot
from pilotlight.device.layout import DATA_ALIGNMENT, TENSOR_ALIGNMENT, Layout
from pilotlight.errors import ModelDataError
from pilotlight.model.checkpoint import hash_header, open_checkpoint
from pilotlight.model.families import describe
from pilotlight.model.safetensors import read_header
from pilotlight.model.spec import TensorSpec
from tests.models import llama_config, llama_tensors, write_checkpoint

CONFIG = llama_config()
TENSORS = llama_tensors(CONFIG)
SPECS = describe(CONFIG).tensors


def filled(layout: Layout) -> bytes:
    """The slab, its gaps zero."""
    slab = bytearray(layout.nbytes)
    for extent in layout.extents:
        with open(extent.file, "rb") as stream:
            stream.seek(extent.file_offset)
            slab[extent.slab_offset : extent.slab_offset + extent.length] = stream.read(extent.length)
    return bytes(slab)


def assert_holds(layout: Layout, specs: tuple[TensorSpec, ...], tensors: Mapping[str, np.ndarray]) -> None:
    slab = filled(layout)
    assert [placed.name for placed in layout.tensors] == [spec.name for spec in specs]
    end = 0
    for placed, spec in zip(layout.tensors, specs, strict=True):
        expected = np.concatenate([tensors[source] for source in spec.sources])
        assert placed.shape == spec.shape == expected.shape
        assert placed.offset % TENSOR_ALIGNMENT == 0
        assert placed.offset >= end
        end = placed.offset + placed.nbytes
        assert slab[placed.offset : end] == expected.tobytes()
    assert end == layout.nbytes


def write_shards(directory: Path, tensors: Mapping[str, np.ndarray], count: int = 2) -> dict[str, str]:
    """Tensors dealt to shards in turn, so that the parts of a fused one lie in different files."""
    directory.mkdir(exist_ok=True)
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    weight_map = {tensor: names[index % count] for index, tensor in enumerate(sorted(tensors))}
    for name in names:
        save_file({tensor: tensors[tensor] for tensor in tensors if weight_map[tensor] == name}, directory / name)
    write_index(directory, weight_map)
    return weight_map


def write_index(directory: Path, weight_map: Any) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "single", CONFIG, TENSORS)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    write_shards(tmp_path / "sharded", TENSORS)
    return tmp_path / "sharded"


@pytest.fixture
def snapshot(single: Path, tmp_path: Path) -> Path:
    build_snapshot(str(single), tmp_path / "snapshot")
    return tmp_path / "snapshot"


# --- a Hugging Face directory


def test_single_file(single: Path) -> None:
    layout = open_checkpoint(single, SPECS)
    assert_holds(layout, SPECS, TENSORS)
    assert len(layout.extents) == sum(len(spec.sources) for spec in SPECS)


def test_shards(sharded: Path) -> None:
    layout = open_checkpoint(sharded, SPECS)
    assert_holds(layout, SPECS, TENSORS)
    assert len({extent.file for extent in layout.extents}) == 2


def test_dtype_is_the_files_own_for_each_tensor(tmp_path: Path) -> None:
    tensors = {
        name: tensor.astype(np.float16 if tensor.ndim == 2 else np.float32) for name, tensor in TENSORS.items()
    }
    layout = open_checkpoint(write_checkpoint(tmp_path / "mixed", CONFIG, tensors), SPECS)
    assert_holds(layout, SPECS, tensors)
    assert {placed.name: placed.dtype for placed in layout.tensors}["norm.weight"] == "F32"
    assert {placed.name: placed.dtype for placed in layout.tensors}["embed.weight"] == "F16"


def test_a_vector_in_int8_is_refused(tmp_path: Path) -> None:
    """Its scale would be one of a row, which it has not."""
    build_snapshot(str(write_checkpoint(tmp_path / "source", CONFIG, TENSORS)), tmp_path / "out", "int8")
    file = tmp_path / "out" / "weights.safetensors"
    size = int.from_bytes(file.read_bytes()[:8], "little")
    header = json.loads(file.read_bytes()[8 : 8 + size])
    start, end = header["norm.weight"]["data_offsets"]
    middle = start + (end - start) // 4
    header["norm.weight"] |= {"dtype": "I8", "data_offsets": [start, middle]}
    header["filler.x"] = {"dtype": "U8", "shape": [end - middle], "data_offsets": [middle, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= size
    file.write_bytes(file.read_bytes()[:8] + text.ljust(size) + file.read_bytes()[8 + size :])
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    manifest["weights"]["header_sha256"] = hash_header(read_header(file))
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelDataError, match=r"tensor 'norm\.weight' is of dtype I8"):
        open_checkpoint(tmp_path / "out", describe(CONFIG).tensors)


def test_parts_of_a_fused_tensor_must_agree_in_dtype(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    directory = write_checkpoint(tmp_path / "mixed", CONFIG, TENSORS | {name: TENSORS[name].astype(np.float16)})
    with pytest.raises(ModelDataError, match=f"tensor '{name}' is of dtype F16.*`pilotlight build snapshot`"):
        open_checkpoint(directory, SPECS)


def test_manifest_of_something_else_is_no_snapshot(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "plain", CONFIG, TENSORS)
    (directory / "manifest.json").write_text('{"name": "of an application"}')
    assert_holds(open_checkpoint(directory, SPECS), SPECS, TENSORS)


def test_H01_tied_model_with_a_head_in_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    specs = describe(llama_config(tie_word_embeddings=True)).tensors
    with caplog.at_level(logging.DEBUG):
        layout = open_checkpoint(write_checkpoint(tmp_path / "tied", CONFIG, TENSORS), specs)
    assert_holds(layout, specs, TENSORS)
    assert "head.weight" not in {placed.name for placed in layout.tensors}
    assert caplog.text == ""


@pytest.mark.parametrize("config", [llama_config(), llama_config(tie_word_embeddings=None)])
def test_H02_untied_model_without_a_head(config: dict[str, Any], tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in TENSORS.items() if name != "lm_head.weight"}
    directory = write_checkpoint(tmp_path / "headless", CONFIG, tensors)
    with pytest.raises(ModelDataError, match=r"model\.safetensors: tensor 'lm_head\.weight' is missing.*not tied"):
        open_checkpoint(directory, describe(config).tensors)


@pytest.mark.parametrize("content", [None, b""])
def test_H11_missing_or_empty_shard_is_named(sharded: Path, content: bytes | None) -> None:
    shard = sharded / "model-00002-of-00002.safetensors"
    shard.unlink()
    if content is not None:
        shard.write_bytes(content)
    problem = "the shard is missing" if content is None else "the file is empty"
    with pytest.raises(ModelDataError, match=rf"model-00002-of-00002\.safetensors: {problem}"):
        open_checkpoint(sharded, SPECS)


def test_H11_tensor_missing_from_its_shard(sharded: Path) -> None:
    shard = sharded / "model-00001-of-00002.safetensors"
    tensors = load_file(shard)
    name = sorted(tensors)[3]
    del tensors[name]
    save_file(tensors, shard)
    with pytest.raises(ModelDataError, match=rf"model-00001-of-00002\.safetensors: tensor '{name}' is missing, but"):
        open_checkpoint(sharded, SPECS)


def test_H11_tensor_missing_from_the_index(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    del weight_map["model.norm.weight"]
    write_index(sharded, weight_map)
    with pytest.raises(ModelDataError, match=r"index\.json: tensor 'model\.norm\.weight' is missing"):
        open_checkpoint(sharded, SPECS)


@pytest.mark.parametrize(
    ("weight_map", "reason"),
    [
        (None, "has no weight_map"),
        ({}, "has no weight_map"),
        ({"a": "../secret.safetensors"}, r"lies in '\.\./secret\.safetensors'"),
        ({"a": "/etc/passwd"}, "lies in '/etc/passwd'"),
        ({"a": 5}, "lies in 5"),
    ],
)
def test_H11_damaged_index(weight_map: Any, reason: str, tmp_path: Path) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelDataError, match=rf"index\.json: .*{reason}"):
        open_checkpoint(tmp_path, SPECS)


def test_H11_index_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("version https://git-lfs")
    with pytest.raises(ModelDataError, match=r"index\.json: is not JSON"):
        open_checkpoint(tmp_path, SPECS)


def test_H13_only_indexed_files_are_read(sharded: Path) -> None:
    other = {name: tensor + 1 for name, tensor in TENSORS.items()}
    save_file(other, sharded / "model.safetensors")
    save_file({"tok_embeddings.weight": TENSORS["model.norm.weight"]}, sharded / "consolidated.safetensors")
    (sharded / "adapter_model.safetensors").write_bytes(b"not a file of ours")
    (sharded / "original").mkdir()
    save_file(other, sharded / "original" / "model-00001-of-00002.safetensors")
    assert_holds(open_checkpoint(sharded, SPECS), SPECS, TENSORS)


def test_H13_without_an_index_only_the_documented_file_is_read(single: Path) -> None:
    save_file({name: tensor + 1 for name, tensor in TENSORS.items()}, single / "consolidated.safetensors")
    assert_holds(open_checkpoint(single, SPECS), SPECS, TENSORS)


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        (None, "has neither model.safetensors nor model.safetensors.index.json$"),
        ("pytorch_model-00001-of-00002.bin", "convert them to safetensors"),
        ("model.Q4_0.gguf", "`pilotlight build snapshot FILE -o DIR`"),
        ("adapter_model.safetensors", "an adapter, not a model"),
    ],
)
def test_no_weights_at_all(file: str | None, hint: str, tmp_path: Path) -> None:
    if file:
        (tmp_path / file).write_bytes(b"x")
    with pytest.raises(ModelDataError, match=hint):
        open_checkpoint(tmp_path, SPECS)


@pytest.mark.parametrize(
    ("name", "shape", "reason"),
    [
        ("model.embed_tokens.weight", (320, 63), r"has shape \[320, 63\], config\.json asks for \[320, 64\]"),
        ("model.embed_tokens.weight", (319, 64), "has 319 rows, config.json asks for 320"),
        ("model.norm.weight", (64, 1), r"has shape \[64, 1\], config\.json asks for \[64\]"),
        (
            "model.layers.0.self_attn.k_proj.weight",
            (31, 64),
            "q_proj.weight' has 64, '.*k_proj.weight' has 31, '.*v_proj.weight' has 32 rows, .* asks for 128",
        ),
        ("model.layers.0.self_attn.k_proj.weight", (32, 65), r"k_proj.weight' has shape \[32, 65\]"),
        (
            "model.layers.1.mlp.down_proj.weight",
            (128, 64),
            r"has shape \[128, 64\], config\.json asks for \[64, 128\]",
        ),
        ("model.norm.weight", (), r"has shape \[\]"),
    ],
)
def test_misshapen_tensor_is_named(name: str, shape: tuple[int, ...], reason: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "bad", CONFIG, TENSORS | {name: np.zeros(shape, np.float32)})
    with pytest.raises(ModelDataError, match=rf"model\.safetensors: .*{reason}"):
        open_checkpoint(directory, SPECS)


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.int64])
def test_dtype_that_is_not_served_is_named(dtype: type, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    directory = write_checkpoint(tmp_path / "bad", CONFIG, TENSORS | {name: TENSORS[name].astype(dtype)})
    with pytest.raises(ModelDataError, match=f"tensor '{name}' is of dtype [FI]"):
        open_checkpoint(directory, SPECS)


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", None),
        ("rope_freqs.weight", None),
        ("model.layers.0.self_attn.q_proj.bias", "WARNING"),
        ("model.layers.0.self_attn.q_proj.weight_scale", "WARNING"),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", "WARNING"),
        ("model.layers.7.self_attn.q_proj.weight", "WARNING"),
        ("vision_tower.layers.0.proj.weight", "DEBUG"),
    ],
)
def test_tensor_that_nobody_asked_for(
    name: str, level: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = write_checkpoint(tmp_path / "more", CONFIG, TENSORS | {name: np.ones(3, np.float32)})
    with caplog.at_level(logging.DEBUG):
        assert_holds(open_checkpoint(directory, SPECS), SPECS, TENSORS)
    assert [record.levelname for record in caplog.records] == ([level] if level else [])
    assert all(name in record.getMessage() for record in caplog.records)


def test_J11_links_of_a_read_only_cache_are_followed(single: Path, tmp_path: Path) -> None:
    cache = tmp_path / "snapshots"
    cache.mkdir()
    for file in single.iterdir():
        (cache / file.name).symlink_to(os.path.relpath(file, cache))
        file.chmod(0o444)
    cache.chmod(0o555)
    try:
        assert_holds(open_checkpoint(cache, SPECS), SPECS, TENSORS)
    finally:
        cache.chmod(0o755)


# --- a snapshot of ours


def test_snapshot_is_one_extent(snapshot: Path) -> None:
    layout = open_checkpoint(snapshot, SPECS, verify=True)
    assert_holds(layout, SPECS, TENSORS)
    (extent,) = layout.extents
    assert extent.file == snapshot / "weights.safetensors"
    assert extent.file_offset % DATA_ALIGNMENT == 0
    assert (extent.slab_offset, extent.length) == (0, layout.nbytes)


def test_snapshot_of_a_directory_is_its_slab(single: Path, snapshot: Path) -> None:
    """Both ways of loading make the same slab, byte for byte."""
    assert filled(open_checkpoint(single, SPECS)) == filled(open_checkpoint(snapshot, SPECS))
    assert open_checkpoint(single, SPECS).tensors == open_checkpoint(snapshot, SPECS).tensors


def test_snapshot_saved_again_by_another_tool_is_recognised(snapshot: Path) -> None:
    weights = snapshot / "weights.safetensors"
    save_file(load_file(weights), weights)
    with pytest.raises(
        ModelDataError, match=r"weights\.safetensors: was saved again by another tool.*build it again"
    ):
        open_checkpoint(snapshot, SPECS)


def test_snapshot_with_another_header(snapshot: Path) -> None:
    weights = snapshot / "weights.safetensors"
    content = weights.read_bytes()
    assert content.count(b'"norm.weight"') == 1
    weights.write_bytes(content.replace(b'"norm.weight"', b'"morn.weight"'))
    with pytest.raises(ModelDataError, match=r"its header is not the one that manifest\.json records"):
        open_checkpoint(snapshot, SPECS)


def test_snapshot_with_flipped_bits_is_found_by_verify(snapshot: Path) -> None:
    weights = snapshot / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-9] ^= 1
    weights.write_bytes(content)
    open_checkpoint(snapshot, SPECS)
    with pytest.raises(ModelDataError, match=r"weights\.safetensors: its data differs.*sha256"):
        open_checkpoint(snapshot, SPECS, verify=True)


def test_cut_snapshot(snapshot: Path) -> None:
    weights = snapshot / "weights.safetensors"
    os.truncate(weights, weights.stat().st_size - 4)
    with pytest.raises(ModelDataError, match=r"weights\.safetensors: the file is cut"):
        open_checkpoint(snapshot, SPECS)


def test_snapshot_of_another_model(snapshot: Path) -> None:
    with pytest.raises(ModelDataError, match=r"tensor 'embed\.weight' has shape \[320, 64\], config\.json asks for"):
        open_checkpoint(snapshot, describe(llama_config(vocab_size=352)).tensors)
    with pytest.raises(ModelDataError, match=r"tensor 'layers\.0\.qkv\.bias' is missing"):
        open_checkpoint(snapshot, describe(llama_config(attention_bias=True)).tensors)
    with pytest.raises(ModelDataError, match=r"tensor 'head\.weight' is there, config\.json does not ask for it"):
        open_checkpoint(snapshot, describe(llama_config(tie_word_embeddings=True)).tensors)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 3}, "snapshot format 3, this version reads 1 and 2"),
        ({"format": None}, "snapshot format None"),
        ({"weights": None}, "says nothing about the weights"),
        ({"weights": []}, "says nothing about the weights"),
        ({"weights": [None]}, "says nothing about the weights"),
        ({"weights": {}}, "its header is not the one"),
        ({"weights": [{}, {}]}, "weights-00001-of-00002.safetensors: the snapshot's weights are missing"),
    ],
)
def test_snapshot_with_a_changed_manifest(snapshot: Path, change: dict[str, Any], reason: str) -> None:
    manifest = json.loads((snapshot / "manifest.json").read_text()) | change
    (snapshot / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelDataError, match=reason):
        open_checkpoint(snapshot, SPECS)


def test_snapshot_whose_recorded_size_differs(snapshot: Path) -> None:
    manifest = json.loads((snapshot / "manifest.json").read_text())
    manifest["weights"]["size"] += 1
    (snapshot / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelDataError, match=r"weights\.safetensors: has \d+ bytes, manifest\.json records \d+"):
        open_checkpoint(snapshot, SPECS)


@pytest.mark.parametrize("name", ["manifest.json", "weights.safetensors"])
def test_snapshot_without_one_of_its_files(snapshot: Path, name: str) -> None:
    (snapshot / name).unlink()
    with pytest.raises(ModelDataError, match=f"{name}.*build it again with `pilotlight build snapshot`"):
        open_checkpoint(snapshot, SPECS)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff"])
def test_snapshot_with_a_damaged_manifest(snapshot: Path, content: bytes) -> None:
    (snapshot / "manifest.json").write_bytes(content)
    with pytest.raises(ModelDataError, match=r"manifest\.json: is not"):
        open_checkpoint(snapshot, SPECS)


@pytest.fixture
def shards(single: Path, tmp_path: Path) -> list[Path]:
    """The weights files of a snapshot that has several."""
    build_snapshot(str(single), tmp_path / "snapshot", shard_bytes=100_000)
    return sorted((tmp_path / "snapshot").glob("weights-*.safetensors"))


def test_snapshot_without_one_of_its_shards(shards: list[Path]) -> None:
    shards[1].unlink()
    with pytest.raises(ModelDataError, match=rf"^{shards[1]}: the snapshot's weights are missing"):
        open_checkpoint(shards[1].parent, SPECS)


def test_snapshot_with_a_shard_in_anothers_place(shards: list[Path]) -> None:
    shards[1].write_bytes(shards[0].read_bytes())
    with pytest.raises(ModelDataError, match=rf"^{shards[1]}: its header is not the one"):
        open_checkpoint(shards[1].parent, SPECS)


def test_snapshot_with_a_tensor_in_two_shards(shards: list[Path]) -> None:
    manifest = json.loads(shards[0].with_name("manifest.json").read_text())
    manifest["weights"][1] = manifest["weights"][0]
    shards[0].with_name("manifest.json").write_text(json.dumps(manifest))
    shards[1].write_bytes(shards[0].read_bytes())
    with pytest.raises(ModelDataError, match=rf"^{shards[1]}: tensor 'embed.weight' is in {shards[0].name} too"):
        open_checkpoint(shards[1].parent, SPECS)


def test_shard_with_flipped_bits_is_found_by_verify(shards: list[Path]) -> None:
    content = bytearray(shards[-1].read_bytes())
    content[-9] ^= 1
    shards[-1].write_bytes(content)
    with pytest.raises(ModelDataError, match=rf"^{shards[-1]}: its data differs.*sha256"):
        open_checkpoint(shards[-1].parent, SPECS, verify=True)

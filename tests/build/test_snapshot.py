"""`pilotlight build snapshot`: the right numbers in the right files, or one line and nothing."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

from pilotlight.build.snapshot import build_snapshot, command
from pilotlight.errors import ModelDataError, UsageError
from pilotlight.model.checkpoint import open_checkpoint
from pilotlight.model.families import describe
from tests.build.gguf_files import byte_metadata, dequantized, write_gguf
from tests.build.tiny import CONFIG, TENSORS, beside
from tests.hostile.files import safetensors_bytes, write
from tests.model.test_checkpoint import filled
from tests.models import llama_config, llama_tensors, write_checkpoint, write_tiny

SPECS = describe(CONFIG).tensors


def fused(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {spec.name: np.concatenate([tensors[source] for source in spec.sources]) for spec in SPECS}


def stored(directory: Path) -> dict[str, np.ndarray]:
    """The snapshot's tensors by the safetensors library; bfloat16 as uint16."""
    found = {}
    for name, entry in safetensors.deserialize((directory / "weights.safetensors").read_bytes()):
        dtype = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8, "I8": np.int8}[
            entry["dtype"]
        ]
        found[name] = np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
    return {name: tensor for name, tensor in found.items() if not name.startswith("filler.")}


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded to nearest, ties to even, by looking at the bits that are dropped."""
    bits = values.view(np.uint32).astype(np.uint64)
    kept, dropped = bits >> 16, bits & 0xFFFF
    up = (dropped > 0x8000) | ((dropped == 0x8000) & (kept % 2 == 1))
    return (kept + up).astype(np.uint16)


def assert_same(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


# --- what is written


@pytest.mark.parametrize(
    ("dtype", "convert"),
    [
        ("auto", lambda values: values),
        ("float32", lambda values: values),
        ("float16", lambda values: values.astype(np.float16)),
        ("bfloat16", bfloat16),
    ],
)
def test_weights_are_fused_and_in_the_dtype(dtype: str, convert: Any, tiny: Path, tmp_path: Path) -> None:
    assert build_snapshot(str(tiny), tmp_path / "out", dtype)
    assert_same(stored(tmp_path / "out"), {name: convert(tensor) for name, tensor in fused(TENSORS).items()})


@pytest.mark.parametrize(
    ("source", "named"), [(np.float16, "float16"), (np.float32, "float32"), ("mixed", "float16")]
)
def test_auto_is_the_dtype_of_most_numbers(source: Any, named: str, tmp_path: Path) -> None:
    def stored_as(tensor: np.ndarray) -> type:
        return (np.float16 if tensor.ndim == 2 else np.float32) if source == "mixed" else source

    tensors = {name: tensor.astype(stored_as(tensor)) for name, tensor in TENSORS.items()}
    directory = write_checkpoint(tmp_path / "half", CONFIG, tensors)
    build_snapshot(str(directory), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["dtype"] == named
    dtype = np.dtype(named)
    assert_same(stored(tmp_path / "out"), {name: tensor.astype(dtype) for name, tensor in fused(tensors).items()})


def test_bfloat16_source_is_copied_and_widened_exactly(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path / "tiny")
    halves = {name: bfloat16(tensor) for name, tensor in TENSORS.items()}
    table, data = {}, b""
    for name, tensor in halves.items():
        begin, data = len(data), data + tensor.tobytes()
        table[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, len(data)]}
    write(directory / "model.safetensors", safetensors_bytes(table, data))
    build_snapshot(str(directory), tmp_path / "same")
    assert_same(stored(tmp_path / "same"), fused(halves))
    build_snapshot(str(directory), tmp_path / "wide", "float32")
    wide = {name: (tensor.astype(np.uint32) << 16).view(np.float32) for name, tensor in halves.items()}
    assert_same(stored(tmp_path / "wide"), fused(wide))


def test_shards_and_one_file_make_the_same_snapshot(tiny: Path, tmp_path: Path) -> None:
    from tests.model.test_checkpoint import write_shards

    sharded = write_tiny(tmp_path / "sharded")
    (sharded / "model.safetensors").unlink()
    write_shards(sharded, TENSORS, 3)
    build_snapshot(str(tiny), tmp_path / "one")
    build_snapshot(str(sharded), tmp_path / "three")
    one, three = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("one", "three"))
    assert one == three


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_weights_in_shards_make_the_same_slab(dtype: str, tiny: Path, tmp_path: Path) -> None:
    """Files of at most so many bytes, and a tensor that is larger alone in its own; any tool reads each."""
    limit = 40_000
    build_snapshot(str(tiny), tmp_path / "one", dtype)
    build_snapshot(str(tiny), tmp_path / "many", dtype, shard_bytes=limit)
    files = sorted((tmp_path / "many").glob("weights*"))
    assert [file.name for file in files] == [
        f"weights-{number:05}-of-{len(files):05}.safetensors" for number in range(1, len(files) + 1)
    ]
    assert len(files) > 2
    for file in files:
        tensors = {name: tensor for name, tensor in load_file(file).items() if not name.startswith("filler.")}
        matrices = [name for name in tensors if not name.endswith(".scale")]
        assert sum(tensor.nbytes for tensor in tensors.values()) <= limit or len(matrices) == 1
    one, many = (open_checkpoint(tmp_path / name, SPECS, verify=True) for name in ("one", "many"))
    assert len(many.extents) == len(files)
    assert many.tensors == one.tensors
    assert filled(many) == filled(one)
    assert not build_snapshot(str(tiny), tmp_path / "many", dtype, shard_bytes=limit)
    with pytest.raises(UsageError, match=r"holds another snapshot .with weights in another number of files"):
        build_snapshot(str(tiny), tmp_path / "many", dtype)


def test_documents_are_taken_along_and_nothing_else(tiny: Path, tmp_path: Path) -> None:
    for name in ("README.md", "training_args.bin", "consolidated.safetensors", "optimizer.pt"):
        (tiny / name).write_bytes(b"not needed")
    (tiny / "chat_template.jinja").write_text("{{ messages }}")
    (tiny / "special_tokens_map.json").write_text("{}")
    (tiny / "additional_chat_templates").mkdir()
    (tiny / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    build_snapshot(str(tiny), tmp_path / "out")
    documents = {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
    }
    files = {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert files == documents | {"manifest.json", "tokenizer.safetensors", "weights.safetensors"}
    for name in documents:
        assert (tmp_path / "out" / name).read_bytes() == (tiny / name).read_bytes()


def test_manifest_records_where_it_comes_from_and_what_it_is(tiny: Path, tmp_path: Path) -> None:
    build_snapshot(str(tiny), tmp_path / "out", "float16")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {key: manifest[key] for key in ("format", "family", "dtype")} == {
        "format": 1,
        "family": "llama",
        "dtype": "float16",
    }
    assert manifest["source"]["location"] == str(tiny)
    assert {file["name"]: file["sha256"] for file in manifest["source"]["files"]} == {
        name: hashlib.sha256((tiny / name).read_bytes()).hexdigest()
        for name in (
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        )
    }
    content = (tmp_path / "out" / "weights.safetensors").read_bytes()
    start = manifest["weights"]["data_start"]
    assert manifest["weights"]["size"] == len(content)
    assert manifest["weights"]["header_sha256"] == hashlib.sha256(content[:start]).hexdigest()
    assert manifest["weights"]["data_sha256"] == hashlib.sha256(content[start:]).hexdigest()


def test_files_are_readable_by_others_and_links_are_not_kept(tiny: Path, tmp_path: Path) -> None:
    (tiny / "model.safetensors").rename(tmp_path / "blob")
    (tiny / "model.safetensors").symlink_to(tmp_path / "blob")
    previous = os.umask(0o022)
    try:
        build_snapshot(str(tiny), tmp_path / "out")
    finally:
        os.umask(previous)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755
    for file in (tmp_path / "out").iterdir():
        assert file.stat().st_mode & 0o777 == 0o644
        assert not file.is_symlink()


def test_gguf_makes_a_whole_model_directory(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", CONFIG, TENSORS, "Q8_0", metadata=byte_metadata(pre="smollm"))
    build_snapshot(str(file), tmp_path / "out")
    quantized = {
        name: dequantized(tensor, "Q8_0") if tensor.ndim == 2 else tensor for name, tensor in TENSORS.items()
    }
    assert_same(stored(tmp_path / "out"), fused(quantized))
    assert {entry.name for entry in (tmp_path / "out").iterdir()} == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "manifest.json",
        "tokenizer.json",
        "tokenizer.safetensors",
        "tokenizer_config.json",
        "weights.safetensors",
    }
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    build_snapshot(str(file), tmp_path / "half", "bfloat16")
    assert_same(stored(tmp_path / "half"), fused({name: bfloat16(tensor) for name, tensor in quantized.items()}))


# --- what stands there already


def test_second_build_of_the_same_builds_nothing(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command([str(tiny), "-o", str(tmp_path / "out"), "--dtype", "float16"]) == 0
    assert re.search(r"built in \S+ s, \d+ MB of float16 weights\n$", capsys.readouterr().out)
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()}
    assert command([str(tiny), "-o", str(tmp_path / "out"), "--dtype", "float16"]) == 0
    assert "already built" in capsys.readouterr().out
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()} == before


def test_copy_of_the_source_is_the_same_source(tiny: Path, tmp_path: Path) -> None:
    """What counts is the content, not where it lies or when it was written."""
    import shutil

    build_snapshot(str(tiny), tmp_path / "out")
    shutil.copytree(tiny, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "model.safetensors", (1, 1))
    assert build_snapshot(str(tmp_path / "copy"), tmp_path / "out") is False


def change_weights(source: Path, output: Path) -> str:
    tensors = load_file(source / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    return "made from"


def change_tokenizer(source: Path, output: Path) -> str:
    with open(source / "tokenizer.json", "a") as stream:
        stream.write(" ")
    return "made from"


def cut_weights(source: Path, output: Path) -> str:
    os.truncate(output / "weights.safetensors", 5000)
    return "the file is cut"


def lose_tokenizer(source: Path, output: Path) -> str:
    (output / "tokenizer.json").unlink()
    return "without tokenizer.json"


def other_config(source: Path, output: Path) -> str:
    (output / "config.json").write_text("{")
    return "with another config.json"


def flipped_bit(source: Path, output: Path) -> str:
    content = bytearray((output / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (output / "weights.safetensors").write_bytes(content)
    return "its data differs"


def older_format(source: Path, output: Path) -> str:
    manifest = json.loads((output / "manifest.json").read_text())
    (output / "manifest.json").write_text(json.dumps(manifest | {"format": 0}))
    return "snapshot format 0"


@pytest.mark.parametrize(
    "change",
    [change_weights, change_tokenizer, cut_weights, lose_tokenizer, other_config, flipped_bit, older_format],
)
def test_another_snapshot_is_replaced_by_force_only(change: Any, tiny: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    build_snapshot(str(tiny), output)
    reason = change(tiny, output)
    before = {file.name: file.read_bytes() for file in output.iterdir()}
    with pytest.raises(UsageError, match=rf"{output}: holds another snapshot \(.*{reason}.*\); --force replaces it"):
        build_snapshot(str(tiny), output)
    assert {file.name: file.read_bytes() for file in output.iterdir()} == before
    assert build_snapshot(str(tiny), output, force=True)
    assert build_snapshot(str(tiny), output) is False
    assert beside(output) == ["out"]


def test_snapshot_of_another_dtype_is_another_snapshot(tiny: Path, tmp_path: Path) -> None:
    build_snapshot(str(tiny), tmp_path / "out", "float16")
    with pytest.raises(UsageError, match=r"holds another snapshot \(of float16\)"):
        build_snapshot(str(tiny), tmp_path / "out", "bfloat16")


@pytest.mark.parametrize("force", [False, True])
def test_directory_that_is_no_snapshot_is_never_replaced(force: bool, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    (tmp_path / "home" / "manifest.json").write_text('{"name": "of an application"}')
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "weights.safetensors").write_text("of another tool")
    for name in ("home", "file", "tiny", "other"):
        with pytest.raises(UsageError, match=f"{name}: is there and is not a snapshot"):
            build_snapshot(str(tiny), tmp_path / name, force=force)
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"


def test_H01_a_head_that_differs_from_the_embedding_is_taken_along(tmp_path: Path) -> None:
    tied = llama_config(tie_word_embeddings=True)
    build_snapshot(str(write_checkpoint(tmp_path / "both", tied, TENSORS)), tmp_path / "out")
    assert_same(stored(tmp_path / "out"), fused(TENSORS))
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == CONFIG
    equal = TENSORS | {"lm_head.weight": TENSORS["model.embed_tokens.weight"]}
    build_snapshot(str(write_checkpoint(tmp_path / "equal", tied, equal)), tmp_path / "tied")
    assert "head.weight" not in stored(tmp_path / "tied")
    assert json.loads((tmp_path / "tied" / "config.json").read_text()) == tied


def test_empty_directory_and_missing_parents_are_filled(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    build_snapshot(str(tiny), tmp_path / "empty")
    build_snapshot(str(tiny), tmp_path / "a" / "b" / "c")
    assert stored(tmp_path / "empty").keys() == stored(tmp_path / "a" / "b" / "c").keys()


def test_output_through_a_link_replaces_what_it_names(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert command([str(tiny), "-o", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "manifest.json").exists()


# --- memory


def test_memory_is_bounded_by_the_largest_tensor(tmp_path: Path) -> None:
    """Anonymous memory above what the imports take may be twice the largest tensor (here 101 MB of 330) and 64 MB.

    Tensors go through in chunks, so even a single whole one would be a fault: the 64 MB must do.
    """
    config = llama_config(
        vocab_size=49152, hidden_size=512, intermediate_size=4096, num_attention_heads=8, num_key_value_heads=8
    )
    tensors = llama_tensors(config)
    largest = max(tensor.nbytes for tensor in tensors.values())
    assert largest > 100e6
    directory = write_checkpoint(tmp_path / "big", config, tensors)
    del tensors
    script = """
import sys, tqdm
from pathlib import Path
from pilotlight.build import pieces, snapshot
def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024
base = peak = anonymous()
original = pieces.encode
def encode(values, dtype):
    global peak
    coded = original(values, dtype)
    peak = max(peak, anonymous())
    return coded
pieces.encode = encode
snapshot.build_snapshot(sys.argv[1], Path(sys.argv[2]), "bfloat16")
print(peak - base)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(directory), str(tmp_path / "out")],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    assert int(done.stdout) < 64e6


def test_int8_keeps_a_scale_for_each_row(tmp_path: Path) -> None:
    """Within half a step of each row, its largest exactly; vectors as they are; and a row of zeros."""
    tensors = {name: tensor.copy() for name, tensor in TENSORS.items()}
    tensors["model.embed_tokens.weight"][7] = 0
    build_snapshot(str(write_checkpoint(tmp_path / "source", CONFIG, tensors)), tmp_path / "out", "int8")
    found = stored(tmp_path / "out")
    expected = fused(tensors)
    assert found.keys() == {*expected, *(f"{name}.scale" for name, tensor in expected.items() if tensor.ndim > 1)}
    for name, tensor in expected.items():
        if tensor.ndim == 1:
            np.testing.assert_array_equal(found[name], tensor)
            continue
        scale = found[f"{name}.scale"][:, None]
        np.testing.assert_array_equal(scale[:, 0], np.abs(tensor).max(axis=1) / np.float32(127))
        off = np.abs(found[name] * scale - tensor)
        assert (off <= scale * 0.5001).all()
        assert found[name].dtype == np.int8
        assert found[name].min() >= -127
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["dtype"] == "int8"
    assert not build_snapshot(str(tmp_path / "source"), tmp_path / "out", "int8")  # it stands


def test_int8_refuses_what_is_not_finite(tmp_path: Path) -> None:
    tensors = {name: tensor.copy() for name, tensor in TENSORS.items()}
    tensors["model.layers.0.mlp.up_proj.weight"][3, 4] = np.inf
    source = write_checkpoint(tmp_path / "source", CONFIG, tensors)
    with pytest.raises(ModelDataError, match=r"'model.layers.0.mlp.up_proj.weight' holds NaN or an infinity"):
        build_snapshot(str(source), tmp_path / "out", "int8")

"""Models of random weights in real sizes: what a start and a throughput are measured on where no model is at hand.

The numbers are one block of 64 MB, written again and again: the disk, the link and the kernels do not know it.
"""

import json
import string
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from pilotlight.device.layout import WeightDtype
from pilotlight.model.checkpoint import MANIFEST, SINGLE_FILE, SNAPSHOT_FORMAT, SNAPSHOT_WEIGHTS, hash_header
from pilotlight.model.families import describe
from pilotlight.model.safetensors import Header, plan_header
from pilotlight.model.spec import ModelSpec, TensorSpec
from tests.models import CHATML
from tests.tokenizers import SPECIALS, byte_tokenizer

from .rig import random_halves

_BLOCK_BYTES = 64 << 20
_DTYPE: WeightDtype = "BF16"
_SCALE = 0.02  # of the numbers: activations stay finite through any depth


def size_of(config: dict[str, Any]) -> int:
    """Bytes of the weights, without what a file has around them."""
    return sum(2 * int(np.prod(tensor.shape)) for tensor in describe(config).tensors)


def write(directory: Path, config: dict[str, Any], *, snapshot: bool) -> Path:
    """A snapshot, or a Hugging Face checkpoint that transformers reads too. Every token of its vocabulary is text."""
    directory.mkdir(parents=True)
    description = describe(config)
    if snapshot:
        tensors = [(tensor.name, _DTYPE, tensor.shape) for tensor in description.tensors]
        header = plan_header(tensors, {"pilotlight_snapshot": str(SNAPSHOT_FORMAT)})
        weights = {"size": header.file_size, "header_sha256": hash_header(header), "data_sha256": ""}
        manifest = {"format": SNAPSHOT_FORMAT, "pilotlight": "", "dtype": "bfloat16", "weights": weights}
        (directory / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        _write_weights(directory / SNAPSHOT_WEIGHTS, header)
    else:
        sources = [source for tensor in description.tensors for source in _sources(description.spec, tensor)]
        tensors = [(name, _DTYPE, shape) for name, shape in sources]
        _write_weights(directory / SINGLE_FILE, plan_header(tensors, {"format": "pt"}))
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}), encoding="utf-8")
    pieces = config["vocab_size"] - 256 - len(SPECIALS)
    words = ("".join(letters) for letters in product(string.ascii_lowercase, repeat=4))
    byte_tokenizer(list(islice(words, pieces))).tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def weights_file(directory: Path) -> Path:
    return next(file for name in (SNAPSHOT_WEIGHTS, SINGLE_FILE) if (file := directory / name).exists())


def _write_weights(file: Path, header: Header) -> None:
    block = random_halves(min(_BLOCK_BYTES, header.file_size) // 2, scale=_SCALE).data.cast("B")
    with file.open("wb") as out:
        out.write(header.encoded)
        left = header.file_size - header.data_start
        while left > 0:
            left -= out.write(block[: min(len(block), left)])


def _sources(spec: ModelSpec, tensor: TensorSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The checkpoint's tensors that are stacked in one of ours."""
    rows = [tensor.shape[0] // len(tensor.sources)] * len(tensor.sources)
    if len(rows) == 3:
        rows = [spec.q_size, spec.kv_size, spec.kv_size]
    for source, count in zip(tensor.sources, rows, strict=True):
        yield source, (count, *tensor.shape[1:])

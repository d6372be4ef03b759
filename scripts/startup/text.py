"""What a vocabulary costs a start: the first token for a text prompt, against the same prompt as token ids.

Of small models with random weights and large real vocabularies, so that nothing but the vocabulary is large.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.bench_server import ENVIRONMENT
from tests.models import llama_config, llama_tensors, write_checkpoint

from .compare import Condition, Report, result, rounds
from .figures import DIGITS
from .sides import ours
from .start import Side

LINE = "What is the capital of France? Answer in one word, then explain: naïve café, 你好, 안녕 😀 12345\n"
_HOT = Condition("hot", "queued")


def measure(
    vocabularies: Mapping[str, Path], flags: Sequence[str], count: int, scratch: Path, report: Report
) -> dict[str, Any]:
    """vocabularies: name -> directory with a tokenizer.json."""
    sides = [side for name, directory in vocabularies.items() for side in _sides(name, directory, flags, scratch)]
    found = result(sides, rounds(sides, [_HOT], count, scratch / "server.log", report))
    entries = found["conditions"][_HOT.name]
    found["later"] = {
        name: round(
            entries[f"{name} text"]["median"]["first_token"] - entries[f"{name} ids"]["median"]["first_token"], DIGITS
        )
        for name in vocabularies
    }
    found["prompt"] = LINE
    return found


def _sides(name: str, vocabulary: Path, flags: Sequence[str], scratch: Path) -> list[Side]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(vocabulary / "tokenizer.json"))
    size = -(-max(tokenizer.get_vocab(with_added_tokens=True).values()) // 32) * 32 + 32
    config = llama_config(vocab_size=size, tie_word_embeddings=True, max_position_embeddings=1024)
    checkpoint, snapshot = scratch / f"{name}-checkpoint", scratch / name
    write_checkpoint(checkpoint, config, llama_tensors(config))
    shutil.copy(vocabulary / "tokenizer.json", checkpoint / "tokenizer.json")
    command = [sys.executable, "-m", "pilotlight", "build", "snapshot", str(checkpoint), "-o", str(snapshot)]
    subprocess.run(command, env=ENVIRONMENT, stdout=sys.stderr, check=True)
    shutil.rmtree(checkpoint)
    ids = tokenizer.encode(LINE).ids
    return [ours(str(snapshot), flags, f"{name} {kind}", prompt) for kind, prompt in (("text", LINE), ("ids", ids))]

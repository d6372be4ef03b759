"""Mapped vocabularies of real models against the library: the same ids for a megabyte of text, and what each takes.

Run by `scripts/prove tokenizers`: real vocabularies are too large to lie in the repository.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pilotlight.build.tokenizer import write_mapped
from pilotlight.text import mapped
from pilotlight.text.detokenizer import Detokenizer
from pilotlight.text.library import LibraryVocabulary
from pilotlight.text.mapped import open_mapped
from pilotlight.text.tokenizer import Tokenizer
from tests.text.trained import mixed_text

TEXT_BYTES = 1_000_000
STREAMED = 20_000  # tokens that are also detokenised one by one
LINE = "What is the capital of France? Answer in one word, then explain: naïve café, 你好, 안녕 😀 12345\n"
# Runs in a process of its own: milliseconds to import, to load (by the clock and of the processor) and to encode the
# first line; and the longest time that another thread got no turn while loading.
_START = """
import sys, threading, time
begun = time.perf_counter()
from pathlib import Path
from pilotlight.text.tokenizer import Tokenizer
imported = time.perf_counter()
import tokenizers
library = time.perf_counter()
longest, done = 0.0, False
def watch():
    global longest
    before = time.perf_counter()
    while not done:
        time.sleep(0.0005)
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
watcher = threading.Thread(target=watch)
if sys.argv[3] == "watched":
    watcher.start()
loading, cpu = time.perf_counter(), time.process_time()
tokenizer = Tokenizer.from_file(Path(sys.argv[1]))
loaded, cpu = time.perf_counter(), time.process_time() - cpu
done = True
if sys.argv[3] == "watched":
    watcher.join()
ids = tokenizer.encode(sys.argv[2])
encoded = time.perf_counter()
print((imported - begun) * 1e3, (library - imported) * 1e3, (loaded - loading) * 1e3, cpu * 1e3,
      (encoded - loaded) * 1e3, longest * 1e3)
"""


def prove(name: str, tokenizer_json: Path, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tokenizer-") as directory:
        ours, library = Path(directory, "mapped"), Path(directory, "library")
        for place in (ours, library):
            place.mkdir()
            shutil.copy(tokenizer_json, place / "tokenizer.json")
        begun = time.perf_counter()
        note = write_mapped(ours / "tokenizer.json")
        result = {"name": name, "note": note, "build_s": round(time.perf_counter() - begun, 1)}
        if not (ours / "tokenizer.safetensors").exists():
            return result
        result["tokenizer_json_bytes"] = tokenizer_json.stat().st_size
        result["mapped_bytes"] = (ours / "tokenizer.safetensors").stat().st_size
        result |= _compare(ours / "tokenizer.json")
        result["start_ms"] = _starts({"mapped": ours, "library": library}, rounds)
        return result


def _compare(tokenizer_json: Path) -> dict[str, Any]:
    text = mixed_text(TEXT_BYTES).encode()[:TEXT_BYTES].decode(errors="ignore")
    found = open_mapped(tokenizer_json)
    assert found is not None
    ours, library = Tokenizer(found), Tokenizer(LibraryVocabulary.from_file(tokenizer_json))
    ids = library.encode(text)
    sizes = (100, 1000, 10_000, mapped.LONG_TEXT - 1)
    with _NothingIsLong():
        same_ids = ours.encode(text) == ids
        again = {size: _medians(ours, library, text[:size]) for size in sizes}
    return {
        "text_bytes": TEXT_BYTES,
        "ids": len(ids),
        "same_ids": same_ids,
        "same_ids_by_process": ours.encode(text) == ids,
        "same_text": ours.decode(ids) == library.decode(ids),
        "same_stream": _stream(ours, ids[:STREAMED]) == _stream(library, ids[:STREAMED]),
        "encode_ms": {**again, TEXT_BYTES: _medians(ours, library, text)},
    }


class _NothingIsLong:
    def __enter__(self) -> None:
        self._before = mapped.LONG_TEXT
        mapped.LONG_TEXT = 10**12

    def __exit__(self, *_: object) -> None:
        mapped.LONG_TEXT = self._before


def _stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def _medians(ours: Tokenizer, library: Tokenizer, text: str, rounds: int = 7) -> dict[str, float]:
    """Milliseconds of either, in turn; all that can be kept of an earlier encoding has been."""
    return _in_turn(rounds, {"mapped": lambda: ours.encode(text), "library": lambda: library.encode(text)})


def _in_turn(rounds: int, what: dict[str, Callable[[], object]]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in what}
    for _ in range(rounds):
        for name, call in what.items():
            begun = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - begun) * 1e3)
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


def _starts(places: dict[str, Path], rounds: int) -> dict[str, dict[str, float]]:
    """Medians of fresh processes, in turn; the freeze is that of processes which are watched."""
    plain: dict[str, list[list[float]]] = {name: [] for name in places}
    watched: dict[str, list[list[float]]] = {name: [] for name in places}
    for _ in range(rounds):
        for name, place in places.items():
            plain[name].append(_start(place, "plain"))
            watched[name].append(_start(place, "watched"))
    columns = ("import", "import_library", "load", "load_cpu", "first_encode")
    return {
        name: dict(zip(columns, _column_medians(plain[name]), strict=False))
        | {"freeze": list(_column_medians(watched[name]))[-1]}
        for name in places
    }


def _column_medians(rows: list[list[float]]) -> Iterator[float]:
    return (round(statistics.median(column), 2) for column in zip(*rows, strict=True))


def _start(place: Path, how: str) -> list[float]:
    command = [sys.executable, "-I", "-c", _START, str(place / "tokenizer.json"), LINE, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def record(tokenizers: dict[str, Path], rounds: int, out: Path, command: str) -> int:
    """Proves each, prints a table, writes `out`; 1 where anything differs."""
    from importlib.metadata import version

    results = []
    for name, file in tokenizers.items():
        result = prove(name, file, rounds)
        results.append(result)
        print(json.dumps(result), file=sys.stderr)
        if "start_ms" in result:
            start, long = result["start_ms"], result["encode_ms"][TEXT_BYTES]
            same = all(value for key, value in result.items() if key.startswith("same_"))
            print(
                f"{name:12} {'same' if same else 'DIFFERENT':9}  load {start['mapped']['load']:7.1f} ms, "
                f"library {start['library']['load']:7.1f};  first line {start['mapped']['first_encode']:6.2f} ms, "
                f"library {start['library']['first_encode']:6.2f};  1 MB {long['mapped']:7.1f} ms, "
                f"library {long['library']:7.1f}"
            )
        else:
            print(f"{name:12} {result['note']}")
    document = {"command": command, "tokenizers": version("tokenizers"), "rounds": rounds, "results": results}
    out.write_text(json.dumps(document, indent=1) + "\n")
    return int(not all(value for result in results for key, value in result.items() if key.startswith("same_")))

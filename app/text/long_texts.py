"""Long texts are encoded by the library in a process of their own, which is started when the first one comes.

On a text of a megabyte the library is about three times as fast as mapped.py, and loading it into this process would
freeze every stream meanwhile. The process ends when it has had no work for a while, and with this one.

    to the process    u64 bytes of text, u8 whether to add special tokens, the text
    from it           u64 ids, each a u32
"""

import os
import select
import struct
import sys
import threading
import weakref
from array import array
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

_IDLE_SECONDS = 60.0
_REQUEST = struct.Struct("<QB")
_REPLY = struct.Struct("<Q")


class LongTexts:
    def __init__(self, tokenizer_json: Path) -> None:
        self.special: list[str] = []  # tokens that are to be made special beside the file's own
        self._file = tokenizer_json
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., LongTexts] | None = None  # its end: called, or with this object's

    def encode(self, text: str, add_special_tokens: bool) -> list[int] | None:
        """None where no process could be had, or it died: then the text is still to be encoded."""
        try:
            request = text.encode()
        except UnicodeEncodeError:  # half a surrogate pair: refused where other texts are too
            return None
        with self._lock:
            for _ in range(2):  # a process that has just gone for want of work takes nothing
                process = self._running()
                if process is None:
                    return None
                with suppress(OSError, EOFError):
                    return _ask(process, request, add_special_tokens)
                self._drop()
        return None

    def _running(self) -> "subprocess.Popen[bytes] | None":
        if self._process is not None and self._process.poll() is not None:
            self._drop()
        if self._process is None:
            import subprocess

            from ..settings import env_name

            environment = {name: value for name, value in os.environ.items() if name != env_name("api_key")}
            try:
                self._process = subprocess.Popen(
                    [*_command(), str(self._file), *self.special],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    env=environment,
                    process_group=0,  # Ctrl-C in a terminal is not for it
                )
            except OSError:
                return None
            self._end = weakref.finalize(self, _end, self._process)
        return self._process

    def _drop(self) -> None:
        """Ends the process, and forgets it: the next text gets another."""
        if self._end is not None:
            self._end()
        self._process = self._end = None


def _command() -> list[str]:
    """Runs this module; the tokenizer's file and the special tokens follow."""
    from ..interpreter import module_command

    return module_command(__name__)


def _ask(process: "subprocess.Popen[bytes]", request: bytes, add_special_tokens: bool) -> list[int]:
    assert process.stdin
    assert process.stdout
    _write(process.stdin, _REQUEST.pack(len(request), add_special_tokens) + request)
    (count,) = _REPLY.unpack(_read(process.stdout, _REPLY.size))
    return array("I", _read(process.stdout, 4 * count)).tolist()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The process ends when its line does."""
    for stream in (process.stdin, process.stdout):
        if stream:
            with suppress(OSError):
                stream.close()
    process.wait()


def _write(stream: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]


def _read(stream: IO[bytes], count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = stream.read(count)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def main(file: str, *special: str) -> None:
    """The process: serves until the line ends or nothing comes for a while."""
    from .library import LibraryVocabulary

    vocabulary = LibraryVocabulary.from_file(Path(file))
    vocabulary.make_special(special)
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    with requests, replies, suppress(EOFError, BrokenPipeError):
        while select.select([requests], [], [], _IDLE_SECONDS)[0]:
            length, add_special_tokens = _REQUEST.unpack(_read(requests, _REQUEST.size))
            ids = vocabulary.encode(_read(requests, length).decode(), bool(add_special_tokens))
            _write(replies, _REPLY.pack(len(ids)) + array("I", ids).tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])

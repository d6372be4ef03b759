"""Reads the machine code of cubins, without a card: what issues in inner loops, how wide accesses are, what spills.

`nvdisasm` and `cuobjdump` come from wheels of the kernels extra. `scripts/sass_report` prints this, and tests hold
the kernels to it.
"""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UnavailableError
from .kernel_compilers import program
from .sass_loops import INSTRUCTION_BYTES, Instruction, inner_loops

_TENSOR = re.compile(r"(HMMA|IMMA|BMMA|DMMA|QMMA|OMMA|HGMMA|IGMMA|QGMMA|BGMMA|UTC\w*MMA)$")
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}  # of a modifier; 4 bytes without
_USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)")


@dataclass(frozen=True, slots=True)
class Mix:
    """What a stretch of code consists of, counted once per instruction, each an issue slot of a warp.

    The three maps of accesses have bytes per lane as keys: {16: 4} are four accesses of 128 bits.
    """

    instructions: int
    tensor: int
    global_loads: dict[int, int]
    global_stores: dict[int, int]
    async_copies: dict[int, int]  # LDGSTS, from global to shared memory
    matrix_loads: int  # LDSM
    local_loads: int
    local_stores: int
    opcodes: dict[str, int]  # without modifiers

    @property
    def tensor_share(self) -> float:
        """Of the issue slots, those of tensor-core instructions."""
        return self.tensor / self.instructions if self.instructions else 0.0


@dataclass(frozen=True, slots=True)
class Loop:
    """An innermost loop. `start` is its first instruction's address in the entry."""

    start: int
    mix: Mix


@dataclass(frozen=True, slots=True)
class EntryReport:
    """One kernel on one architecture."""

    module: str
    entry: str
    architecture: str
    registers: int
    stack_bytes: int
    static_shared_bytes: int
    mix: Mix
    inner_loops: tuple[Loop, ...]

    @property
    def tensor_share(self) -> float:
        """Of the issue slots of those inner loops that use the tensor cores; 0 where none does."""
        mixes = [loop.mix for loop in self.inner_loops if loop.mix.tensor]
        return sum(mix.tensor for mix in mixes) / (sum(mix.instructions for mix in mixes) or 1)


def report(directory: Path, modules: Sequence[str] = (), architectures: Sequence[str] = ()) -> list[EntryReport]:
    """Every entry in the cubins under `directory`, by module, architecture and name.

    `modules` and `architectures` ("sm_80") choose some (default: all). Raises UnavailableError where a chosen cubin
    is not there or the tools are not.
    """
    found = {(file.stem, file.parent.name): file for file in directory.glob("sm_*/*.cubin")}
    for module in modules or [""]:
        for architecture in architectures or [""]:
            if not any((module or name, architecture or of) == (name, of) for name, of in found):
                what = " ".join(filter(None, (module, architecture)))
                raise UnavailableError(
                    f"{directory}: no cubin {what}".rstrip() + "; scripts/build_kernels makes them"
                )
    chosen = sorted(
        (module, int(architecture[3:]), file)
        for (module, architecture), file in found.items()
        if (not modules or module in modules) and (not architectures or architecture in architectures)
    )
    return [entry for module, _, file in chosen for entry in read_cubin(module, file.parent.name, file)]


def read_cubin(module: str, architecture: str, file: Path) -> Iterator[EntryReport]:
    _, functions = json.loads(_run("nvdisasm", "-json", str(file)))
    usage = {match[1]: match for match in _USAGE.finditer(_run("cuobjdump", "--dump-resource-usage", str(file)))}
    for function in sorted(functions, key=lambda function: str(function["function-name"])):
        name = function["function-name"]
        code = function["sass-instructions"]
        registers, stack, shared = (int(usage[name][group]) for group in (2, 3, 4))
        loops = (Loop(body[0] * INSTRUCTION_BYTES, _mix([code[at] for at in body])) for body in inner_loops(code))
        yield EntryReport(module, name, architecture, registers, stack, shared, _mix(code), tuple(loops))


def _mix(code: Sequence[Instruction]) -> Mix:
    """NOPs pad the end of a kernel and are left out."""
    opcodes: Counter[str] = Counter()
    by_width: dict[str, Counter[int]] = {kind: Counter() for kind in ("LDG", "STG", "LDGSTS")}
    for instruction in code:
        kind, *modifiers = instruction["opcode"].split(".")
        if kind == "NOP":
            continue
        opcodes[kind] += 1
        if kind in by_width:
            by_width[kind][next((_WIDTHS[word] for word in modifiers if word in _WIDTHS), 4)] += 1
    return Mix(
        instructions=opcodes.total(),
        tensor=sum(count for kind, count in opcodes.items() if _TENSOR.match(kind)),
        global_loads=dict(by_width["LDG"]),
        global_stores=dict(by_width["STG"]),
        async_copies=dict(by_width["LDGSTS"]),
        matrix_loads=opcodes["LDSM"],
        local_loads=opcodes["LDL"],
        local_stores=opcodes["STL"],
        opcodes=dict(opcodes),
    )


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run([program(tool), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"{tool} {' '.join(arguments)}: {(done.stderr or done.stdout).strip()[:300]}")
    return done.stdout

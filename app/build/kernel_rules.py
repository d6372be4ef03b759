"""The rules for every kernel, checked on its PTX and on what ptxas made of it. Each breach is one line.

The rules on text follow values through an entry's virtual registers; those on usage are the hardware's arithmetic.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from . import kernel_ptx
from .kernel_compilers import Usage

_REGISTERS = 65_536  # of an SM, on every architecture we build for
_BLOCK_SHARED = 1024  # what the system takes of shared memory per block


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What an SM holds at once (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")."""

    threads: int
    blocks: int
    shared_bytes: int


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(2048, 32, 164 * 1024),
    "sm_86": Multiprocessor(1536, 16, 100 * 1024),
    "sm_89": Multiprocessor(1536, 24, 100 * 1024),
    "sm_90": Multiprocessor(2048, 32, 228 * 1024),
    "sm_100": Multiprocessor(2048, 32, 228 * 1024),
    "sm_120": Multiprocessor(1536, 24, 100 * 1024),
}


def check_text(module: str, text: str) -> Iterator[str]:
    """Breaches that stand in the PTX."""
    files = kernel_ptx.file_names(text)
    found = kernel_ptx.entries(text)
    if not found:
        yield f"kernels/{module}.cu: has no entry"
    for entry in found:
        if entry.max_threads is None:
            yield f"kernels/{module}.cu: {entry.name} has no __launch_bounds__"
        yield from _check_body(entry, files)


def check_usage(module: str, entry: kernel_ptx.Entry, architecture: str, usage: Usage) -> Iterator[str]:
    """Breaches of what the source promises, on one architecture."""
    where = f"kernels/{module}.cu: {entry.name} on {architecture}"
    if usage.spill_bytes:
        yield f"{where} spills {usage.spill_bytes} bytes at {usage.registers} registers"
    elif usage.stack_bytes:
        yield f"{where} has {usage.stack_bytes} bytes on the stack: an array with a varying index, or a call"
    threads, blocks = entry.max_threads or 1, entry.min_blocks
    limits = MULTIPROCESSORS[architecture]
    promise = f"{where} promises {blocks} blocks of {threads} threads an SM"
    registers = blocks * block_registers(usage.registers, threads)
    if registers > _REGISTERS:
        yield f"{promise}: {usage.registers} registers a thread make {registers}, over {_REGISTERS}"
    if blocks * threads > limits.threads or blocks > limits.blocks:
        yield f"{promise}, which has room for {limits.threads} threads and {limits.blocks} blocks"
    shared = blocks * (usage.static_shared_bytes + _BLOCK_SHARED)
    if shared > limits.shared_bytes:
        yield f"{promise}: {shared} bytes of shared memory, over {limits.shared_bytes}"


def block_registers(registers: int, threads: int) -> int:
    """What a block takes of the register file: in steps of 256 a warp, and of four warps."""
    warps = (threads + 31) // 32
    return (registers * 32 + 255) // 256 * 256 * ((warps + 3) // 4 * 4)


# --- the text of an entry ------------------------------------------------------------------------------------

_INSTRUCTION = re.compile(r"(?:@!?%?\w+\s+)?([a-z][\w.:]*)\s+(.*?);")
_REGISTER = re.compile(r"%[a-z]+\d+")
_ADDRESS = re.compile(r"\[([^\]]*)\]")
_VECTOR = re.compile(r"\{[^}]*\}|[^,]+")
_TRIGONOMETRY = re.compile(r"(sin|cos)\.approx")
_FLOAT_ATOMIC = re.compile(r"(atom|red)\..*\.(f16|f16x2|bf16|bf16x2|f32|f64)$")
_PRODUCT = re.compile(r"(mul|mad)\.lo\.[su]32|shl\.b32")
_READ = re.compile(r"(ld|ldu|atom)\.(?!param|local|const).*[bsu](32|64)$")
_GIVEN = re.compile(r"(ld|ldu|atom)\.")
# Operations through which an offset stays one. A comparison, a quotient, a bit field or a loaded value is no offset.
_CARRIES = re.compile(r"(add|sub|mov|cvt|cvta|shl|shr|or|xor|selp|min|max|mul|mad|shfl)\.")
_WIDENED = re.compile(r"(mul|mad)\.(wide|lo\.[su]64)|shl\.b64")
_MOST_SCALED, _MOST_SHIFTED = 16, 4  # bytes of an element; beyond that it is a row's


@dataclass(frozen=True, slots=True)
class _Line:
    """One instruction. Registers only; `address` are those in brackets."""

    place: str  # "kernels/norm.cu:12"
    opcode: str
    targets: tuple[str, ...]
    sources: tuple[str, ...]
    factors: tuple[str, ...]  # the first two operands after the target, as they stand
    addresses: tuple[tuple[str, ...], ...]


def _check_body(entry: kernel_ptx.Entry, files: dict[str, str]) -> Iterator[str]:
    code = list(_lines(entry.body, files))
    for line in code:
        if _TRIGONOMETRY.match(line.opcode):
            yield f"{line.place}: {entry.name} uses {line.opcode}; the rotary table comes from the host"
        elif _FLOAT_ATOMIC.match(line.opcode):
            yield f"{line.place}: {entry.name} uses {line.opcode}; sums are in a fixed order"
    yield from _check_offsets(entry.name, code)


def _lines(body: str, files: dict[str, str]) -> Iterator[_Line]:
    place = "?"
    for text in body.splitlines():
        located = kernel_ptx.LOC.match(text)
        if located:
            place = f"{files.get(located[1], '?')}:{located[2]}"
        elif not text.startswith("\t."):
            for opcode, rest in _INSTRUCTION.findall(text):
                operands = [operand.strip() for operand in _VECTOR.findall(rest) if operand.strip()]
                stores = opcode.partition(".")[0] in ("st", "red", "cp", "prefetch", "bar", "bra")
                targets = () if stores else tuple(_REGISTER.findall(operands[0]))
                read = operands if stores else operands[1:]
                yield _Line(
                    place,
                    opcode,
                    targets,
                    tuple(_REGISTER.findall(" ".join(read))),
                    tuple(operands[1:3]),
                    tuple(tuple(_REGISTER.findall(address)) for address in _ADDRESS.findall(rest)),
                )


def _check_offsets(name: str, code: list[_Line]) -> Iterator[str]:
    """A 32-bit product that is the offset of an element in global memory, and may wrap around.

    Of two variables of which one at least is a parameter or comes from memory, or of a constant and what comes from
    memory, as the number of a page does. What is made of thread and block indexes alone is bounded by the launch, a
    quotient times its own divisor by the dividend; what is scaled by more than an element in 64 bits was a row's
    number.
    """
    read = _reached(
        {target: "" for line in code if _READ.match(line.opcode) for target in line.targets}, code, _passed
    )
    given = _reached(
        {target: "" for line in code if _GIVEN.match(line.opcode) for target in line.targets}, code, _all
    )
    divisors = {line.targets[0]: line.factors[1] for line in code if line.opcode.startswith("div.")}
    products = {
        line.targets[0]: line.place
        for line in code
        if _PRODUCT.match(line.opcode)
        and divisors.get(line.factors[0]) != line.factors[1]
        and divisors.get(line.factors[1]) != line.factors[0]
        and (
            any(factor in read for factor in line.factors)
            or (all(factor.startswith("%") for factor in line.factors) and any(f in given for f in line.factors))
        )
    }
    offsets = _reached(products, code, _passed)
    reported = set()
    for line in code:
        for register in _global_addresses(line):
            place = offsets.get(register)
            if place and place not in reported:
                reported.add(place)
                yield f"{place}: {name} addresses memory by a 32-bit product; compute it in 64 bits: (long long)a * b"


def _reached(origin: dict[str, str], code: list[_Line], passed: Callable[[_Line], Sequence[str]]) -> dict[str, str]:
    """Registers that a value of `origin` gets into -> that value's own entry. `passed` gives the sources of an
    instruction that its targets carry on. To a fixed point, since loops carry values backwards."""
    origin = dict(origin)
    steps = [(line.targets, sources) for line in code if line.targets and (sources := passed(line))]
    size = -1
    while size != len(origin):
        size = len(origin)
        for targets, sources in steps:
            found = next((origin[source] for source in sources if source in origin), None)
            if found is not None:
                for target in targets:
                    if not target.startswith("%p"):  # a predicate is no number
                        origin.setdefault(target, found)
    return origin


def _all(line: _Line) -> Sequence[str]:
    return line.sources


def _passed(line: _Line) -> Sequence[str]:
    """The sources of which the target is still an offset in the same unit."""
    if not _CARRIES.match(line.opcode):
        return ()
    if _WIDENED.match(line.opcode):
        scale = line.factors[1]
        small = scale.isdecimal() and int(scale) <= (_MOST_SHIFTED if line.opcode.startswith("shl") else _MOST_SCALED)
        return line.sources if small else line.sources[2:]  # the addend of a mad; a shift has none
    return line.sources


def _global_addresses(line: _Line) -> Iterator[str]:
    """The address registers of an access that may be to global memory."""
    kind, *modifiers = line.opcode.split(".")
    addresses = line.addresses
    if kind == "cp":
        addresses = addresses[1:2]  # the first is the destination in shared memory
    elif kind not in ("ld", "ldu", "st", "atom", "red", "prefetch", "prefetchu") or any(
        space.partition("::")[0] in ("shared", "param", "local", "const") for space in modifiers
    ):
        return
    for registers in addresses:
        yield from registers

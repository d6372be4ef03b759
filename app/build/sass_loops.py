"""The innermost loops of a kernel's machine code, found in its flow graph.

By dominators rather than by branches backwards, since ptxas moves rare paths behind the kernel and branches back from
there: that is no loop.
"""

import re
from collections.abc import Sequence
from typing import Any

INSTRUCTION_BYTES = 16  # since sm_70
_TARGET = re.compile(r"(?:^|[\s,(`])(0x[0-9a-f]+)\)?$")
_BARRIER = re.compile(r"\bB\d+\b")

Instruction = dict[str, Any]  # of nvdisasm's JSON: "opcode", "operands", "predicate"


def inner_loops(code: Sequence[Instruction]) -> list[list[int]]:
    """The indexes of the instructions of every loop that holds no other loop.

    A loop is what is reached backwards from branches to a head that dominates them (Aho, Sethi, Ullman: natural
    loops); several branches to one head are one loop. The branch to itself that stands behind every kernel is not
    reached, and none.
    """
    starts, successors = _blocks(code)
    order = _reverse_postorder(successors)
    dominator = _dominators(successors, order)
    bodies: dict[int, set[int]] = {}
    for block in order:
        for head in successors[block]:
            if _dominates(head, block, dominator):
                bodies.setdefault(head, {head}).update(_body(head, block, successors, order))
    inner = [
        (head, body) for head, body in bodies.items() if not any(other in body for other in bodies if other != head)
    ]
    ends = [*starts[1:], len(code)]
    return [
        [index for block in sorted(body) for index in range(starts[block], ends[block])] for _, body in sorted(inner)
    ]


def _blocks(code: Sequence[Instruction]) -> tuple[list[int], list[list[int]]]:
    """The first instruction of each basic block, and each block's successors by number."""
    jumps = {index: _next_of(code, index) for index in range(len(code)) if _ends_block(code[index])}
    leaders = {0} | {index + 1 for index in jumps} | {target for targets in jumps.values() for target in targets}
    starts = sorted(index for index in leaders if index < len(code))
    number = {index: block for block, index in enumerate(starts)}
    successors = []
    for block, end in enumerate([*starts[1:], len(code)]):
        targets = jumps.get(end - 1, [end])
        successors.append([number[target] for target in targets if target in number])
        assert starts[block] < end
    return starts, successors


def _ends_block(instruction: Instruction) -> bool:
    return instruction["opcode"].split(".")[0] in ("BRA", "BSYNC", "EXIT", "RET", "BRX", "JMP")


def _next_of(code: Sequence[Instruction], index: int) -> list[int]:
    """Where execution may go on after an instruction that ends a block."""
    instruction = code[index]
    kind = instruction["opcode"].split(".")[0]
    operands = instruction.get("operands", "")
    target = _target(operands)
    after = [index + 1] if "predicate" in instruction else []
    if kind == "BSYNC":
        return [*after, _reconvergence(code, index)]
    if target is None:
        return after
    conditional = not operands.lstrip("`(").startswith("0x")  # "UP0, 0x240", "~UR4, 0x240"
    return [target, index + 1] if conditional or after else [target]


def _reconvergence(code: Sequence[Instruction], index: int) -> int:
    """Where the lanes go on that meet at a BSYNC, which its BSSY says. Mostly that is the next instruction; else the
    nearest BSSY before it of the same barrier is taken for its own."""
    barrier = _BARRIER.search(code[index].get("operands", ""))
    targets = [
        _target(before["operands"])
        for before in code[:index]
        if before["opcode"].startswith("BSSY") and barrier and barrier[0] in before["operands"]
    ]
    known = [target for target in targets if target is not None]
    return known[-1] if known and index + 1 not in known else index + 1


def _target(operands: str) -> int | None:
    match = _TARGET.search(operands)
    return int(match[1], 16) // INSTRUCTION_BYTES if match else None


def _reverse_postorder(successors: list[list[int]]) -> list[int]:
    """Of the blocks that are reached from the first."""
    seen = {0}
    order = []
    stack = [(0, iter(successors[0]))]
    while stack:
        block, waiting = stack[-1]
        following = next((other for other in waiting if other not in seen), None)
        if following is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(successors[following])))
    return order[::-1]


def _dominators(successors: list[list[int]], order: list[int]) -> dict[int, int]:
    """Each block's immediate dominator (Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm)."""
    rank = {block: position for position, block in enumerate(order)}
    before: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for other in successors[block]:
            before[other].append(block)
    found = {0: 0}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [other for other in before[block] if other in found]
            common = known[0]
            for other in known[1:]:
                while common != other:
                    if rank[common] > rank[other]:
                        common = found[common]
                    else:
                        other = found[other]
            if found.get(block) != common:
                found[block] = common
                changed = True
    return found


def _dominates(head: int, block: int, dominator: dict[int, int]) -> bool:
    while block not in (head, 0):
        block = dominator[block]
    return block == head


def _body(head: int, last: int, successors: list[list[int]], order: list[int]) -> set[int]:
    """The blocks from which `last` is reached without passing the head."""
    found = {last}
    grew = last != head
    while grew:
        grew = False
        for block in order:
            if block not in found and block != head and not found.isdisjoint(successors[block]):
                found.add(block)
                grew = True
    return found

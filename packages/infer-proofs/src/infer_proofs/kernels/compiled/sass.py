"""The machine code of compiled kernels: its instructions, and the loops they form."""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import triton.backends.nvidia

_LABEL = re.compile(r"(\.L_?\w+):")
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:\{\s*)?(@!?U?P\w+\s+)?([A-Z0-9_.a-z]+)(.*?);")
_BRANCH_TARGET = re.compile(r"`\((\.L_?\w+)\)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        code: with its modifiers, such as "LDG.E.128".
        operands: the rest of its text.
        never: its predicate is false: it is issued and does nothing.
    """

    code: str
    operands: str
    never: bool = False

    @property
    def op(self) -> str:
        """The code without modifiers."""
        return self.code.partition(".")[0]

    @property
    def modifiers(self) -> list[str]:
        """The modifiers after the op."""
        return self.code.split(".")[1:]


@dataclass(frozen=True, slots=True)
class Loop:
    """Instructions between a branch back and its target, with those of loops inside and of branches that are skipped.

    Attributes:
        start: index of the first in the kernel.
        body: all of them.
    """

    start: int
    body: tuple[Instruction, ...]

    def contains(self, other: "Loop") -> bool:
        """Whether `other` lies within this loop."""
        end, other_end = self.start + len(self.body), other.start + len(other.body)
        return self != other and self.start <= other.start and other_end <= end

    @property
    def waits(self) -> bool:
        """Whether it does nothing but ask whether something has arrived."""
        return len(self.body) <= 8 and any(each.op in ("SYNCS", "NANOSLEEP") for each in self.body)


@cache
def disassemble(machine_code: bytes) -> str:
    """Return the text of a cubin, by the disassembler that comes with Triton."""
    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(machine_code)
        file.flush()
        return subprocess.run(  # noqa: S603 - Triton's own tool on a file of ours
            [tool, "--print-code", "--no-dataflow", file.name], capture_output=True, text=True, check=True
        ).stdout


def find_loops(text: str) -> list[Loop]:
    """Return all loops of a disassembled kernel but those that only wait, in the order of their starts."""
    labels: dict[str, int] = {}
    instructions: list[Instruction] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _INSTRUCTION.match(line):
            never = (found[1] or "").strip() in ("@!PT", "@!UPT")
            instructions.append(Instruction(found[2], found[3], never))
    ends: dict[int, int] = {}
    for at, each in enumerate(instructions):
        target = _BRANCH_TARGET.search(each.operands) if each.op == "BRA" else None
        if target is not None and labels[target[1]] < at:
            start = labels[target[1]]
            ends[start] = max(at, ends.get(start, 0))
    loops = [Loop(start, tuple(instructions[start : end + 1])) for start, end in sorted(ends.items())]
    return [loop for loop in loops if not loop.waits]


def innermost(loops: Sequence[Loop]) -> list[Loop]:
    """Return those that contain no other."""
    return [loop for loop in loops if not any(loop.contains(other) for other in loops)]

"""Random PTX: kernels whose names and labels differ in counters alone, and edits of them."""

from __future__ import annotations

import random

from .world import Edit

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
NAMES = (
    "_ZN4main1kB2v{c}B8cw51cXTExx",
    "_ZN4main1kB3v{c}0Edx",
    "_ZN4main1kB{c}v1Edx",
    "_ZN4main1kB{c}v2B8cw51cXTEdx",
    "k${c}",
    "k_{c}",
    "kernel{c}",
    "_Z1kILi{c}EEvPi",
    "__cuda_k_{c}",
)
KERNEL = """
{table}.visible .entry {name}(.param .u64 {name}_param_0)
{{
    .reg .b64 %rd<4>;
    .reg .b32 %r<4>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [{name}_param_0];
    ld.global.u32 %r1, [%rd1];
    setp.eq.s32 %p1, %r1, 0;
    @%p1 bra {label};
    add.s32 %r2, %r1, {value};
    st.global.u32 [%rd1+4], %r2;
{label}:
{load}    ret;
}}
"""


class PtxProgram:
    """A program and a generator of edits to it.

    Args:
        chance: Where all choices come from.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.form = chance.choice(NAMES)
        self.counters = chance.sample(range(1, 9), chance.choice((1, 2, 2, 3)))
        self.values = [chance.randrange(100, 999) for _ in self.counters]
        self.labels = chance.choice(("$L__BB{c}_1", "$L__BB0_{c}", "LBB{c}"))
        self.shift = 0
        self.comment = 0
        self.has_tables = chance.random() < 0.4

    def begin(self) -> list[Edit]:
        """The edits that make the program."""
        return [{"edit": "set", "name": "thing", "value": "ptx"}, self._asked(), self._written()]

    def _name(self, at: int) -> str:
        return self.form.format(c=self.counters[at])

    def _asked(self) -> Edit:
        name = self._name(self.chance.randrange(len(self.counters)))
        return {"edit": "set", "name": "options", "value": {"name": name}}

    def _written(self) -> Edit:
        kernels = []
        for at, value in enumerate(self.values):
            table = f"__table_{at}"
            load = f"    mov.u64 %rd2, {table};\n    ld.global.u32 %r3, [%rd2];\n    st.global.u32 [%rd1+8], %r3;\n"
            filled = KERNEL.format(
                name=self._name(at),
                value=value,
                label=self.labels.format(c=at + self.shift),
                table=f".global .align 4 .u32 {table} = {value + 1};\n" if self.has_tables else "",
                load=load if self.has_tables else "",
            )
            kernels.append(filled)
        comment = f"// remark {self.comment}\n" if self.comment else ""
        return {"edit": "write", "path": "src/k.ptx", "text": f"{comment}{HEAD}{''.join(kernels)}"}

    def step(self) -> list[Edit]:
        """Some edits and the ask that follows them."""
        chance = self.chance
        ask: Edit = {"edit": "ask", "cache": chance.choice(("same", "new"))}
        if chance.random() < 0.1:
            ask["process"] = "fresh"
        edits = (
            self._value,
            self._swap,
            self._count,
            self._label,
            self._remark,
            self._turn,
            self._turn,
            self._turn,
            self._other_form,
        )
        chance.choice(edits)()
        return [self._asked(), self._written(), ask]

    def _value(self) -> None:
        self.values[self.chance.randrange(len(self.values))] = self.chance.randrange(100, 999)

    def _swap(self) -> None:
        self.values.reverse()

    def _count(self) -> None:
        self.counters = self.chance.sample(range(1, 9), len(self.counters))

    def _label(self) -> None:
        self.shift = self.chance.randrange(5)

    def _remark(self) -> None:
        self.comment += 1

    def _turn(self) -> None:
        self.counters.reverse()

    def _other_form(self) -> None:
        self.form = self.chance.choice(NAMES)

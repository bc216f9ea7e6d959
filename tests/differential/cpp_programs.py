"""Random CUDA C++ programs and edits: trees of headers, ways to include them, and what happens to them afterwards.

Method      Headers have an order and include only those after them, so that no program includes itself. Each gives
            macros other values, and the kernel stores the macros, so that whatever is read shows in the code.
Source      What may stand here is what the C++ standard ([cpp], [lex.phases]) and the NVRTC User Guide allow:
            line splices, comments, digraphs, raw strings, includes by macro, `#include_next`, `__has_include`,
            `#pragma once`, `#line`, `--pre-include`, `-I` in order, quoted names looked for beside the file that
            includes. `#embed`, `#import` and `__COUNTER__` NVRTC does not know.
"""

# ruff: noqa: E501 (tables of program text read best in one line each)
from __future__ import annotations

import random
from typing import Any

from .world import CHECKOUT, Edit

MACROS = [f"M{number}" for number in range(8)]
FOLDERS = ("src", "inc0", "inc1", "inc2", "src/deep", "inc0/deep")

KERNEL = """
__device__ constexpr int hashed(const char *text) { return *text ? (*text + 31 * hashed(text + 1)) & 0xffff : 7; }
@TEMPLATE@ __global__ void k(int *out) {
@STORES@
    out[29] = __CUDACC_VER_MINOR__ * 100;
    out[30] = defined_once();
@CALLS@}
"""

SEEN = """
__device__ inline int defined_once() {
    return 0
#ifdef SEEN1
    + 1
#endif
#ifdef SEEN2
    + 2
#endif
#ifdef SEEN3
    + 4
#endif
    ;
}
"""

COUNTING = (
    "#ifndef SEEN1\n#define SEEN1\n#elif !defined SEEN2\n#define SEEN2\n#elif !defined SEEN3\n#define SEEN3\n#endif\n"
)

UNTAKEN = (
    '#if 0\n#include "{name}"\n#endif\n',
    '/* a comment\n#include "{name}"\n*/\n',
    '// a comment that goes on \\\n#include "{name}"\n',
    'static const char *const text_{unique} = R"x(\n#include "{name}"\n)x";\n',
    '#define UNUSED_{unique} #include "{name}"\n',
    "#if 0\nchar *when = __DATE__ __TIME__;\n#endif\n",
    "#ifdef NEVER_DEFINED\n#include NEVER_DEFINED\n#endif\n",
    '#if 0\n"unterminated\n#include "{name}"\n#endif\n',
    'static const char *const text_{unique} = "/*";\n',
    "// it's a quote that nobody closes\n",
    "// a byte that is no UTF-8: \udce9\n",
    '#define QUOTED_{unique}(x) #x "//" R"(*/)"\n',
)

INCLUDING = (
    '#include "{name}"\n',
    '#include "{name}"\n',
    "#include <{name}>\n",
    "#include <{name}>\n",
    '%:include "{name}"\n',
    '#inc\\\nlude "{name}"\n',
    '#/* a\n*/include/* b */"{name}" // c\n',
    "  #\tinclude\\\n\\\n <{name}> /* d */\n",
    '#define WHERE_{unique} "{name}"\n#include WHERE_{unique}\n',
    "#define WHERE_{unique} <{name}>\n#include WHERE_{unique}\n",
    "#define JOIN_{unique}(x) <x>\n#include JOIN_{unique}({name})\n",
    "#define TEXT_{unique}(x) #x\n#include TEXT_{unique}({name})\n",
    '#if __has_include("{name}")\n#include "{name}"\n#endif\n',
    "#ifdef __has_include\n#if __has_include(<{name}>) // c\n#include <{name}>\n#else\n#define M7 77\n#endif\n#endif\n",
    '#define HAS_{unique} "{name}"\n#if __has_include(HAS_{unique})\n#include HAS_{unique}\n#endif\n',
    '#if __has_include("{name}") && !__has_include(<none/{name}>)\n#include <{name}>\n#endif\n',
    '#if defined M1 && M1 > 500\n#include "{name}"\n#endif\n',
    '#if __has_include("./{name}")\n#include "./{name}"\n#endif\n',
    '#if __has_include("../inc0/{name}")\n#include "../inc0/{name}"\n#endif\n',
    '#if __has_include("../src/deep/../{name}")\n#include "../src/deep/../{name}"\n#endif\n',
    '#include "{head}\\\n{tail}"\n',
    '#line 7 "orig.y"\n#include "{name}"\n',
    "#include FROM_OUTSIDE\n",
    "#if __has_include(FROM_OUTSIDE)\n#include FROM_OUTSIDE\n#endif\n",
    f'#if __has_include("{CHECKOUT}/inc1/{{name}}")\n#include "{CHECKOUT}/inc1/{{name}}"\n#endif\n',
    '#if __has_include("deep/{name}")\n#include "deep/{name}"\n#endif\n',
    "#if __has_include(<{name}>)\n#undef M6\n#define M6 66\n#else\n#undef M6\n#define M6 67\n#endif\n",
)


class CppProgram:
    """A program and a generator of edits to it.

    Args:
        chance: Where all choices come from.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.thing = chance.choice(("path", "path", "path", "function"))
        self.files: dict[str, list[str]] = {}
        self.earlier: list[Edit] = []
        self.links: list[str] = []
        self.settings: dict[str, Any] = {}
        self._unique = 0
        self._mapped: set[str] = set()
        self._places = 0
        self.has_place = chance.random() < 0.2
        self._forms = chance.sample(INCLUDING, chance.choice((2, 3, 5, 9)))  # few: they hide each other's faults
        self._asides = chance.sample(UNTAKEN, chance.choice((0, 1, 2, 5)))

    # -- the program --------------------------------------------------------------------------------

    def begin(self) -> list[Edit]:
        """The edits that make the program."""
        chance = self.chance
        number = chance.choice((2, 3, 4, 6, 8, 12, 40))
        self.names = [f"h{each}.h" for each in range(number)]
        if chance.random() < 0.2:
            self.names[-1] = chance.choice(("with space.h", "ü.h", "a..b.h", "noext", "x+y.hpp", "sub.d.h"))
        folders = ["src", *chance.sample(FOLDERS[1:4], chance.randrange(1, 4))]
        self.folders = folders
        edits: list[Edit] = [{"edit": "mkdir", "path": folder} for folder in folders]
        for rank in range(number):
            for folder in dict.fromkeys([chance.choice(folders), *chance.sample(FOLDERS, chance.choice((0, 0, 1, 2)))]):
                self.files[f"{folder}/{self.names[rank]}"] = self._header(rank)
        for name in self.names:
            places = [f"{folder}/{name}" for folder in folders if f"{folder}/{name}" in self.files]
            if len(places) > 1 and chance.random() < 0.6:
                self.files[places[0]].insert(1, f"#include_next <{name}>\n")
        options: dict[str, Any] = {"include_dirs": [f"../{each}" for each in folders[1:]]}
        self._options(options)
        self.files["src/k.cu"] = self._kernel()
        self.files["src/program.py"] = ["def k() -> str:\n    return SOURCE\n"]
        edits += [self._written(path) for path in self.files]
        self.settings = {"options": options, "thing": self.thing}
        edits += [{"edit": "set", "name": name, "value": value} for name, value in self.settings.items()]
        return edits

    def _options(self, options: dict[str, Any]) -> None:
        chance = self.chance
        defines = {"FROM_OUTSIDE": chance.choice(('"{}"', "<{}>")).format(self._later(0))}
        if chance.random() < 0.3:
            defines[chance.choice(MACROS)] = str(chance.randrange(100, 999))
        options["defines"] = defines
        for name, values, share in (
            ("std", ["c++14", "c++17", "c++20"], 0.2),
            ("fastmath", [True], 0.1),
            ("max_registers", [32, 64], 0.1),
            ("opt", [0, 1, 2], 0.1),
            ("lineinfo", [True], 0.06),
            ("debug", [True], 0.03),
            ("lto", [True], 0.04),
        ):
            if chance.random() < share:
                options[name] = chance.choice(values)
        if options.get("debug"):
            options.pop("opt", None)  # refused, but for 0
        raw = []
        if chance.random() < 0.15:
            raw.append(chance.choice(("--pre-include={}", "-include={}")).format(self._later(0)))
        if chance.random() < 0.1:
            raw.append(
                chance.choice(
                    ("-DM5=555", "-UM5", "--define-macro=M5=557", "-w", "--restrict", "-lineinfo", "-G", "--fmad=false")
                )
            )
        if raw:
            options["options"] = raw
        self.is_template = chance.random() < 0.15
        if self.is_template:
            options["name"] = "k<3>"
        self.linked = ""
        if chance.random() < 0.1:
            self.linked = chance.choice(("dev.cu", "dev.ptx")) if not options.get("lto") else "dev.cu"
            options["link"] = [self.linked]
            self.files[f"src/{self.linked}"] = self._device(self.linked)

    def _device(self, name: str) -> list[str]:
        if name == "dev.cu":
            lines = [self._include(0) for _ in range(self.chance.randrange(2))]
            return [
                *lines,
                '#ifndef M2\n#define M2 2\n#endif\nextern "C" __device__ int dev(int x) { return x * M2; }\n',
            ]
        factor = self.chance.randrange(100, 999)
        text = (
            ".version 8.0\n.target sm_80\n.address_size 64\n"
            ".visible .func (.param .b32 r) dev(.param .b32 x)\n{\n.reg .b32 %a;\nld.param.b32 %a, [x];\n"
            f"mul.lo.s32 %a, %a, {factor};\nst.param.b32 [r], %a;\nret;\n}}\n"
        )
        return [text]

    def _kernel(self) -> list[str]:
        chance = self.chance
        lines = [self._include(0) for _ in range(chance.randrange(1, 5))]
        if self.has_place and chance.random() < 0.5:
            lines.append("#undef M0\n#define M0 " + self._place() + "\n")
        lines += [self._aside(0) for _ in range(chance.randrange(2)) if self.thing == "path"]
        stores = "".join(f"#ifdef {name}\n    out[{at}] = {name};\n#endif\n" for at, name in enumerate(MACROS))
        calls = "    out[31] = dev(out[32]);\n" if self.linked else ""
        before = 'extern "C" __device__ int dev(int);\n' if self.linked else ""
        template = "template <int N>" if self.is_template else 'extern "C"'
        body = KERNEL.replace("@STORES@", stores).replace("@CALLS@", calls).replace("@TEMPLATE@", template)
        return [*lines, SEEN, before, body]

    def _place(self) -> str:
        return self.chance.choice(
            ("(int)sizeof(__FILE__)", "hashed(__FILE__)", "(int)sizeof(__BASE_FILE__)", "__FILE__[sizeof(__FILE__) / 2]",
             "(int)sizeof(__builtin_FILE())")
        )  # fmt: skip

    def _header(self, rank: int) -> list[str]:
        chance = self.chance
        lines = [self._define() for _ in range(chance.randrange(1, 4))]
        lines += [self._include(rank + 1) for _ in range(chance.choice((0, 0, 1, 1, 2))) if rank + 1 < len(self.names)]
        lines += [self._aside(rank + 1) for _ in range(chance.choice((0, 0, 1, 2)))]
        if self.has_place and chance.random() < 0.4:
            self._unique += 1
            lines.append(
                f"#ifndef GOT{self._unique}\n#define GOT{self._unique}\nenum {{ place{self._unique} = sizeof(__FILE__) }};\n"
                f"#undef M0\n#define M0 place{self._unique}\n#endif\n"
            )
        if chance.random() < 0.3:
            lines.append(COUNTING)
        if chance.random() < 0.1:
            lines.append(f"#undef M4\n#define M4 {chance.choice(('__LINE__', '__INCLUDE_LEVEL__'))}\n")
        chance.shuffle(lines)
        self._unique += 1
        guard = f"GUARD_{self._unique}"
        opening, closing = chance.choice(
            (
                ("#pragma once\n", ""),
                ("#pragma once\n", ""),
                ('_Pragma("once")\n', ""),
                (f"#ifndef {guard}\n#define {guard}\n", "#endif\n"),
                (f"#if !defined({guard}) // first\n#define {guard} 1\n", "#endif // first\n"),
                (
                    f"#ifndef {guard}_1\n#define {guard}_1\n",
                    f"#elif !defined({guard}_2)\n#define {guard}_2\n{COUNTING}#endif\n",
                ),
            )
        )
        return [opening, *lines, closing]

    def _define(self) -> str:
        name, value = self.chance.choice(MACROS), self.chance.randrange(100, 999)
        return f"#undef {name}\n#define {name} {value}\n"

    def _later(self, rank: int) -> str:
        return self.chance.choice(self.names[min(rank, len(self.names) - 1) :])

    def _include(self, rank: int) -> str:
        self._unique += 1
        name = self._later(rank)
        form = self.chance.choice(self._forms)
        if "FROM_OUTSIDE" in form and rank:
            form = '#include "{name}"\n'
        if " " in name and ("JOIN" in form or "TEXT" in form):
            form = "#include <{name}>\n"
        return form.format(name=name, head=name[:2], tail=name[2:], unique=self._unique)

    def _aside(self, rank: int) -> str:
        self._unique += 1
        form = self.chance.choice(self._asides or ["// nothing\n"])
        return form.replace("{name}", self._later(rank)).replace("{unique}", str(self._unique))

    # -- edits --------------------------------------------------------------------------------------

    def step(self) -> list[Edit]:
        """Some edits and the ask that follows them."""
        chance = self.chance
        ask: Edit = {"edit": "ask", "cache": chance.choice(("same", "new", "new"))}
        edits: list[Edit] = []
        for _ in range(chance.choice((1, 1, 1, 1, 1, 2, 3))):
            edits += self._edit()
        if chance.random() < 0.04:
            ask["compiler"] = "other"
        elif chance.random() < 0.13:
            ask["process"] = "fresh"
        elif chance.random() < 0.08 and self.settings["thing"] == "path":
            first = max((at + 1 for at, each in enumerate(edits) if each["edit"] in ("set", "move", "env")), default=0)
            edits.insert(chance.randrange(first, len(edits) + 1), {"edit": "decorate"})
            ask["decorated"] = True
        if chance.random() < 0.12:
            ask["during"] = self._during()
        return [*edits, ask]

    def _during(self) -> list[dict[str, Any]]:
        when = self.chance.choice(("before", "after", "around"))
        known = dict(self.files)
        found = [each for _ in range(2) for each in self._content_edit()]
        edits = [each for each in found if each["edit"] not in ("ask", "dirty") and each.get("way") != "mapped"]
        if when != "around":
            return [{"when": when, "edits": edits}]
        back = []
        for edit in reversed(edits):
            path = edit.get("path", "")
            if path in known:
                self.files[path] = known[path]
                back.append(self._written(path))
            else:
                self.files.pop(path, None)
                back.append({"edit": "remove", "path": path})
        return [{"when": "before", "edits": edits}, {"when": "after", "edits": back}]

    def _edit(self) -> list[Edit]:
        choices = (
            (self._content_edit, 8), (self._same_meaning, 6), (self._link_edit, 4), (self._order_edit, 3),
            (self._option_edit, 3), (self._environment_edit, 2), (self._back, 3), (self._new_source, 1),
        )  # fmt: skip
        functions, weights = zip(*choices, strict=True)
        return self.chance.choices(functions, weights)[0]()

    def _written(self, path: str, **more: Any) -> Edit:
        edit = {"edit": "write", "path": path, "text": "".join(self.files[path]), **more}
        self.earlier.append(edit)
        return edit

    def _headers(self) -> list[str]:
        return [path for path in self.files if path.endswith((".h", "noext", "hpp"))]

    def _some_header(self) -> str:
        return self.chance.choice(self._headers())

    def _content_edit(self) -> list[Edit]:
        chance, path = self.chance, self._some_header()
        lines = list(self.files[path])
        kind = chance.choice(("value", "value", "value", "mapped", "line", "remove", "shadow", "place", "rename"))
        if kind in ("value", "mapped"):
            places = [at for at, line in enumerate(lines) if line.startswith("#undef M") and line.count("\n") == 2]
            if places:
                at = chance.choice(places)
                lines[at] = lines[at].rstrip("\n")[:-3] + f"{chance.randrange(100, 999)}\n"
                self.files[path] = lines
                if kind == "mapped":
                    dirty = [] if path in self._mapped else [{"edit": "dirty", "path": path}, {"edit": "ask"}]
                    self._mapped.add(path)
                    return [*dirty, self._written(path, way="mapped")]
                way = chance.choice(("in place", "replaced"))
                return [self._written(path, way=way, keeps_time=chance.random() < 0.5)]
        if kind == "remove" and len(self._headers()) > 1 and chance.random() < 0.6:
            self.files.pop(path)
            return [{"edit": "remove", "path": path}]
        name = path.rsplit("/", 1)[-1]
        if kind == "shadow":
            folder = chance.choice(FOLDERS)
            self.files[f"{folder}/{name}"] = self._header(self._rank(name))
            return [self._written(f"{folder}/{name}")]
        if kind == "rename":
            fresh = f"{chance.choice(FOLDERS)}/{chance.choice(self.names)}"
            self.files[fresh] = self.files.pop(path)
            return [{"edit": "rename", "path": path, "to": fresh}]
        lines.insert(
            chance.randrange(1, len(lines)), self._define() if kind == "line" else self._aside(self._rank(name) + 1)
        )
        self.files[path] = lines
        return [self._written(path)]

    def _rank(self, name: str) -> int:
        return self.names.index(name) if name in self.names else len(self.names) - 1

    def _same_meaning(self) -> list[Edit]:
        chance, path = self.chance, self._some_header()
        self._places += 1
        return chance.choice(
            (
                lambda: [{"edit": "touch", "path": path}],
                lambda: [self._written(path, way="replaced")],
                lambda: [
                    {"edit": "write", "path": f"{chance.choice(FOLDERS[:4])}/noise{self._places}.h", "text": "#error\n"}
                ],
                lambda: [{"edit": "move", "to": f"checkout{self._places}"}],
                lambda: [
                    {
                        "edit": "set",
                        "name": "cwd",
                        "value": chance.choice((".", "..", f"{CHECKOUT}/src", f"{CHECKOUT}/inc0")),
                    }
                ],
                lambda: [{"edit": "env", "name": "UNRELATED", "value": str(self._places)}],
                list,
            )
        )()

    def _back(self) -> list[Edit]:
        edit = self.chance.choice(self.earlier[-12:])
        return [{**edit, "way": "in place"}]

    def _link_edit(self) -> list[Edit]:
        chance, path = self.chance, self._some_header()
        other = self._some_header()
        folder = chance.choice(("inc0", "inc1", "inc2"))
        self._places += 1
        up = "../" * path.count("/")
        kind = chance.choice(("soft", "hard", "apart", "folder", "retarget"))
        if kind == "soft" and path != other:
            return [{"edit": "symlink", "path": path, "to": up + other}]
        if kind == "hard":
            fresh = f"{chance.choice(FOLDERS)}/{chance.choice(self.names)}"
            self.files.setdefault(fresh, self.files[path])
            return [{"edit": "hardlink", "path": fresh, "to": path}]
        if kind == "apart":
            return [{"edit": "copy", "path": path, "from": path}]
        if kind == "folder" and folder not in self.links:
            self.links.append(folder)
            return [
                {"edit": "rename", "path": folder, "to": f"tree_{folder}"},
                {"edit": "symlink", "path": folder, "to": f"tree_{folder}"},
            ]
        if self.links:
            link = chance.choice(self.links)
            targets = [f"tree_{link}", *(f"tree_{each}" for each in self.links), *self.folders]
            return [{"edit": "symlink", "path": link, "to": chance.choice([each for each in targets if each != link])}]
        return [{"edit": "hardlink", "path": f"{folder}/{other.rsplit('/', 1)[-1]}", "to": path}]

    def _set_options(self, **changed: Any) -> list[Edit]:
        options = {**self.settings["options"], **changed}
        self.settings["options"] = {name: value for name, value in options.items() if value is not None}
        return [{"edit": "set", "name": "options", "value": self.settings["options"]}]

    def _order_edit(self) -> list[Edit]:
        folders = list(self.settings["options"]["include_dirs"])
        if self.chance.random() < 0.4:
            folders.insert(
                self.chance.randrange(len(folders) + 1),
                self.chance.choice(("../inc2", "../empty", "deep", "../inc0/../inc1")),
            )
        self.chance.shuffle(folders)
        return self._set_options(include_dirs=folders[:5])

    def _option_edit(self) -> list[Edit]:
        chance = self.chance
        defines = dict(self.settings["options"]["defines"])
        kind = chance.choice(("define", "outside", "reorder", "opt", "registers", "fastmath"))
        if kind == "define":
            defines[chance.choice(MACROS)] = str(chance.randrange(100, 999))
        elif kind == "outside":
            defines["FROM_OUTSIDE"] = chance.choice(('"{}"', "<{}>")).format(self._later(0))
        elif kind == "reorder":
            defines = dict(reversed(defines.items()))
        elif kind == "opt":
            return self._set_options(opt=chance.choice((0, 1, 2, 3)))
        elif kind == "registers":
            return self._set_options(max_registers=chance.choice((None, 32, 40)))
        else:
            return self._set_options(fastmath=chance.choice((None, True)))
        return self._set_options(defines=defines)

    def _environment_edit(self) -> list[Edit]:
        name = self.chance.choice(
            ("NVCC_APPEND_FLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "NVRTC_FLAGS", "TMPDIR", "PWD", "LANG")
        )
        value = {"TMPDIR": "/tmp", "LANG": "C", "NVCC_APPEND_FLAGS": "-DM5=1"}.get(name, f"{CHECKOUT}/inc1")
        return [{"edit": "env", "name": name, "value": self.chance.choice((value, None))}]

    def _new_source(self) -> list[Edit]:
        wanted = ("src/k.cu", f"src/{self.linked}")
        path = self.chance.choice([each for each in wanted if each in self.files])
        self.files[path] = self._kernel() if path == "src/k.cu" else self._device(self.linked)
        return [self._written(path)]

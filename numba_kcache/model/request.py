"""Requests to NVRTC and the linker: one source, one target, its options, and its place for error messages.

Not here    `Request`, which the engine looks up and builds for kernels of every kind (engine.request), and how one is
            made for a source (frontends.source.request).
"""

from __future__ import annotations

from . import NamedTuple, Target

SOURCE_KINDS = ("cuda", "ptx", "cubin", "fatbin", "ltoir")
"""The kinds of source that a kernel other than a Numba kernel is made from."""


FILE_WORDS = {
    "include": "u", "__has": "h", "__D": "D", "__T": "T", "E__": "E", "P__": "P", "DATE": "A", "TIME": "M",
    "assert": "a", "source_loc": "u", "__builtin_": "b", "\\": "\\", "??/": "?",
}  # fmt: skip
"""A CUDA C++ text that may include files, or whose code may depend on its path or the time, contains one of these.
`E__` covers `__LINE__` and `__FILE__`; a backslash is there because a line may be continued within a word. The value
of each word is its rarest letter: a search for a letter takes a thirtieth of the time, and mostly finds none."""


DEBUG_FLAGS = frozenset(("-G", "--device-debug"))
LINE_FLAGS = DEBUG_FLAGS | {"-lineinfo", "--generate-line-info"}
"""Raw flags of NVRTC for line tables."""


class CompileOptions(NamedTuple):
    """Compile options. Fields as in `cached_kernel`; `base_dir` is the folder that relative paths start from."""

    fastmath: bool = False
    std: str | None = None
    defines: tuple[tuple[str, str | None], ...] = ()
    include_dirs: tuple[str, ...] = ()
    max_registers: int | None = None
    lineinfo: bool = False
    debug: bool = False
    lto: bool = False
    opt: int = 3
    flags: tuple[str, ...] = ()
    keep_ptx: bool = True
    fast_compile: str | bool = False
    base_dir: str = ""

    @property
    def has_lines(self) -> bool:
        """True if the code has line tables, which contain paths."""
        return self.lineinfo or self.debug or not LINE_FLAGS.isdisjoint(self.flags)


class LinkInput(NamedTuple):
    """One input of the linker beside the kernel: `kind` as in `model.linkable`, a name for messages, its bytes.

    Quoted includes in a `cu` input are searched for in `folder` first.
    """

    kind: str
    name: str
    data: bytes
    folder: str = ""

    @property
    def unplaced(self) -> str:
        """The reason why an input given as text, with a path as its name, cannot be keyed if it includes files."""
        return (
            f"the link input {self.name} includes files from the folder in its name (link the file itself by its path)"
        )


class Origin(NamedTuple):
    """Place of a source in the user's files, for messages and line tables.

    Args:
        path: The user's file; `""` where there is none (exec, stdin).
        line: The line of that file at which the source, or what defines it, starts; 1-based.
        is_whole_file: Whether the file itself is the source.
        is_cell: Whether `path` is the name of a notebook's cell: messages name it, line tables and keys do not, since
            it differs in each session.
    """

    path: str = ""
    line: int = 1
    is_whole_file: bool = False
    is_cell: bool = False


class ModuleEntries(NamedTuple):
    """A request for several kernels of one source, as a module.

    Args:
        names: The entries wanted, name expressions included, in order; () for all that the source defines.
        lazy: Whether to compile it to LTO-IR alone, from which each kernel is linked when it is first used.
    """

    names: tuple[str, ...] = ()
    lazy: bool = False


class SourceRequest(NamedTuple):
    """A source, or code that a compiler made of one, to be built for one target.

    Args:
        kind: One of `SOURCE_KINDS`.
        label: Name of the kernel in messages, `"package.module.saxpy"`; not part of any key.
        source: The text; "" if there is code instead.
        name: The entry that the user requested, a name expression included; None to find it.
        guess: The name of the Python function that returned the source; it decides among several entries.
        target: What to build for.
        options: The compile options.
        link: Further inputs, in order.
        signature: C++ types of the parameters as the user wrote them; None to use those the compiler reports.
        ptx_target: The virtual target to compile for first, where the user gave one.
        origin: Place of the source in the user's files.
        asks_files: Whether the source, or CUDA C++ that it links, may include files.
        module: The entries requested, for a module; None for one kernel.
        code: A cubin, fatbin or LTO-IR, as the kind says.
    """

    kind: str
    label: str
    source: str
    name: str | None
    guess: str | None
    target: Target
    options: CompileOptions
    link: tuple[LinkInput, ...] = ()
    signature: str | None = None
    ptx_target: Target | None = None
    origin: Origin = Origin()
    asks_files: bool = False
    module: ModuleEntries | None = None
    code: bytes = b""

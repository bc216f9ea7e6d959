"""A CUDA C++ program, asked of the cache and of the plain compilers.

Promise     `plain` shares no code with the package: NVRTC and nvJitLink through their bindings, with the flags that
            docs/reference/kernel.md promises, in the order that it promises.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .processes import reach
from .world import World

Call = dict[str, Any]
"""Fields of an ask: `folder` and `name` of the program's world, `options`, `thing`, `cwd`, `env`, `during`, ..."""


class Answer(NamedTuple):
    """Outcome of an ask: code, or the reason why there is none; the key and `way` of asks with a stand-in; the code of
    the kernel's own source, before others were linked."""

    code: bytes | str | None
    is_hit: bool = False
    refused: str = ""
    failed: str = ""
    key: str = ""
    way: str = ""
    main: bytes = b""


kept: dict[Any, Any] = {}
"""Of this process: its caches by directory, and kernels that were decorated before they are requested."""


def enter(call: Call) -> World:
    """Bring this process to where the call is made: variables, working directory, compilers."""
    world = World(Path(call["folder"]), call["name"])
    for name, text in call.get("env", {}).items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = world.expand(text)
    folder = world.folder / world.expand(call.get("cwd", "."))
    os.chdir(folder if folder.is_dir() else world.folder)
    if call.get("compiler"):
        for library in sorted(Path(call["compiler"]).glob("libnvrtc*.so*")):
            if ".alt." not in library.name:
                ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    return world


def cache_of(call: Call) -> Any:
    """The cache that the call asks: an object of this process, or one that knows only what is on disk."""
    from numba_kcache import KernelCache

    if call.get("cache") == "new" or call["directory"] not in kept:
        kept[call["directory"]] = KernelCache(directory=call["directory"], durability="none")
    return kept[call["directory"]]


def answer(cache: Any, ask: Callable[[], bytes | str]) -> Answer:
    """Request the code from the cache, and report the kind of answer."""
    from numba_kcache import UncacheableError

    before = cache.info("process").hits
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = ask()
        return Answer(code, cache.info("process").hits > before)
    except UncacheableError as error:
        return Answer(None, refused=str(error))
    except Exception as error:
        return Answer(None, failed=f"{type(error).__name__}: {error}")


def decorate(call: Call) -> None:
    """Make the kernel now; a later ask takes it."""
    world = enter(call)
    with contextlib.suppress(Exception):  # the ask then says what is wrong with it
        kept["kernel"] = _kernel(call, world, cache_of(call))


def serve(call: Call) -> Answer:
    """Request the code from the cache."""
    call = {**call, "cache": "same"} if call.get("decorated") and "kernel" in kept else call
    world = enter(call)
    cache = cache_of(call)

    def ask() -> bytes:
        kernel = kept.pop("kernel", None) if call.get("decorated") else None
        kernel = kernel or _kernel(call, world, cache)
        with _reaching(call):
            kernel.compile()
        return bytes(kernel.cubin())

    return answer(cache, ask)


def _options(call: Call, world: World) -> dict[str, Any]:
    def expanded(value: Any) -> Any:
        if isinstance(value, str):
            return world.expand(value)
        if isinstance(value, list):
            return [expanded(each) for each in value]
        if isinstance(value, dict):
            return {name: expanded(each) for name, each in value.items()}
        return value

    return {name: expanded(value) for name, value in call["options"].items()}


def _kernel(call: Call, world: World, cache: Any) -> Any:
    from numba_kcache import cached_kernel

    options = _options(call, world)
    if "link" in options:
        options["link"] = [str(world.root / "src" / name) for name in options["link"]]
    thing: Any = world.root / "src" / "k.cu"
    if call.get("thing") == "ptx":
        thing = world.root / "src" / "k.ptx"
    if call.get("thing") == "function":
        namespace: dict[str, Any] = {"SOURCE": thing.read_text("utf-8"), "__name__": "program"}
        program = world.root / "src" / "program.py"
        exec(compile(program.read_text(), str(program), "exec"), namespace)
        thing = namespace["k"]
    return cached_kernel(thing, arch="sm_90", cache=cache, **options)


@contextlib.contextmanager
def _reaching(call: Call) -> Iterator[None]:
    """Stop where NVRTC is called for the first time, and where it returns, for the edits of these moments."""
    if not call.get("during"):
        yield
        return
    from numba_kcache.toolchain import nvrtc

    real = nvrtc.function

    def function(name: str, *returns: Any) -> Any:
        found = real(name, *returns)
        return compile_program(found) if name == "CompileProgram" else found

    def compile_program(found: Any) -> Any:
        def first(*arguments: Any) -> Any:
            nvrtc.function = real
            reach("before")
            try:
                return found(*arguments)
            finally:
                reach("after")

        return first

    nvrtc.function = function
    try:
        yield
    finally:
        nvrtc.function = real


def plain(call: Call) -> list[Answer]:
    """Compile without a cache: one answer for each name that the program may have."""
    world = enter(call)
    base = world.root / "src"
    if call.get("thing") == "ptx":
        return [_link([("ptx", (base / "k.ptx").read_bytes())], call["options"], False)]
    files = [
        "k.cu",
        *([f"{re.sub(r'[^A-Za-z0-9_]', '_', call['options']['name'])}.cu"] if "name" in call["options"] else []),
    ]
    names = [name for file in files for name in (str(base / file), file)]
    given, main = _options(call, world), call.get("main", b"")
    source = (base / "k.cu").read_bytes() if (base / "k.cu").is_file() else None
    if source is None:
        return [Answer(None, failed="no source")]
    try:
        # With debug information the program's name is in the code: the file's, or the asked kernel's.
        is_named = not main and (world.says_place() or ("name" in given and has_tables(given)))
        return [_plain(source, name, given, base, main) for name in (names if is_named else names[:1])]
    except OSError as error:
        return [Answer(None, failed=str(error))]


def has_tables(given: dict[str, Any]) -> bool:
    """Check whether the code has line tables or more for a debugger."""
    raw = given.get("options", [])
    return bool(given.get("lineinfo") or given.get("debug") or "-lineinfo" in raw or "-G" in raw)


def _plain(source: bytes, name: str, given: dict[str, Any], base: Path, main: bytes) -> Answer:
    linked = given.get("link", [])
    flags = _flags(given, base, bool(linked))
    if given.get("lineinfo") or given.get("debug"):
        source = f'#line 1 "{base / Path(name).name}"\n'.encode() + source
    expressions = [given["name"]] if "name" in given else []
    lto = bool(given.get("lto"))
    made, log = (main, "") if main else _nvrtc(source, name, flags, expressions, lto)
    if made is None:
        return Answer(None, failed=log)
    if not linked and not lto:
        return Answer(made)
    inputs = [("ltoir" if lto else "cubin", made)]
    for each in linked:
        content = (base / each).read_bytes()
        if each.endswith(".cu"):
            folder = (base / each).parent
            compiled, log = _nvrtc(content, str(folder / Path(each).name), _flags(given, folder, True), [], lto)
            if compiled is None:
                return Answer(None, failed=log)
            inputs.append(("ltoir" if lto else "cubin", compiled))
        else:
            inputs.append(("ptx", content))
    return _link(inputs, given, lto)._replace(main=made)


def _flags(given: dict[str, Any], base: Path, linked: bool) -> list[str]:
    flags = ["-arch=sm_90"]
    flags += [f"-D{name}" if text is None else f"-D{name}={text}" for name, text in given.get("defines", {}).items()]
    for wanted, flag in (
        (given.get("std"), f"--std={given.get('std')}"),
        (given.get("fastmath"), "--use_fast_math"),
        (given.get("max_registers"), f"--maxrregcount={given.get('max_registers')}"),
        (given.get("lineinfo"), "--generate-line-info"),
        (given.get("debug"), "--device-debug"),
        (given.get("lto"), "--dlink-time-opt"),
        (linked and not given.get("lto"), "--relocatable-device-code=true"),
        (given.get("opt", 3) != 3 and not given.get("lto"), f"--ptxas-options=-O{given.get('opt')}"),
    ):
        if wanted:
            flags.append(flag)
    flags += given.get("options", [])
    folders = [base, *(base / each for each in given.get("include_dirs", [])), *_toolkit()]
    flat = [Path(os.path.normpath(each)) for each in folders]
    pairs = zip(folders, flat, strict=True)
    return [*flags, *(f"-I{short if short.resolve() == each.resolve() else each}" for each, short in pairs)]


def _toolkit() -> list[Path]:
    from cuda.pathfinder import find_nvidia_header_directory

    found = find_nvidia_header_directory("cudart")
    return [] if found is None else [Path(found), Path(found, "cccl")]


def _nvrtc(source: bytes, name: str, flags: list[str], expressions: list[str], lto: bool) -> tuple[bytes | None, str]:
    from cuda.bindings import nvrtc

    _status, program = nvrtc.nvrtcCreateProgram(source, os.fsencode(name), 0, None, None)
    for expression in expressions:
        nvrtc.nvrtcAddNameExpression(program, expression.encode())
    words = [os.fsencode(flag) for flag in (*flags, "--no-cache", "--modify-stack-limit=false")]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
    try:
        if int(status):
            _status, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = bytes(size + 1)
            nvrtc.nvrtcGetProgramLog(program, log)
            return None, log.rstrip(b"\0").decode("utf-8", "replace") or str(status)
        size_of, get = (
            (nvrtc.nvrtcGetLTOIRSize, nvrtc.nvrtcGetLTOIR) if lto else (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        )
        _status, size = size_of(program)
        code = bytes(size + 1)
        get(program, code)
        return code[:size], ""
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _link(inputs: list[tuple[str, bytes]], given: dict[str, Any], lto: bool) -> Answer:
    from cuda.bindings import nvjitlink

    kinds = {name: getattr(nvjitlink.InputType, name.upper()) for name in ("ltoir", "cubin", "ptx")}
    opt = given.get("opt", 3)
    opt = 0 if opt == 3 and given.get("debug") else opt  # ptxas refuses others with debug information
    flags = ["-arch=sm_90", f"-O{opt}" if opt in (0, 3) else f"-Xptxas=-O{opt}"]
    flags += ["-lto"] if lto else []
    flags += [f"-maxrregcount={given['max_registers']}"] if given.get("max_registers") else []
    flags += ["-lineinfo"] if given.get("lineinfo") else []
    flags += ["-g"] if given.get("debug") else []
    flags += ["-ftz=1", "-prec-div=0", "-prec-sqrt=0"] if lto and given.get("fastmath") else []
    handle = nvjitlink.create(len(flags), flags)
    try:
        for number, (kind, content) in enumerate(inputs):
            nvjitlink.add_data(handle, kinds[kind], content, len(content), f"input{number}")
        nvjitlink.complete(handle)
        code = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, code)
        return Answer(bytes(code))
    except nvjitlink.nvJitLinkError as error:
        return Answer(None, failed=str(error))
    finally:
        nvjitlink.destroy(handle)

"""Each kind of object that a user wraps, and the source text taken from it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numba_kcache.errors import OptionError
from numba_kcache.frontends import cached_kernel
from numba_kcache.frontends.source import define_path, define_text, returns_source
from numba_kcache.frontends.source.inputs import read_link_inputs
from numba_kcache.model import FILE_WORDS
from numba_kcache.model.text import decoded
from tests.support.compiling import EMPTY, compiled
from tests.support.resolving import definition_of

FLAG = True


def annotated(x: int = 1) -> str:
    raise AssertionError("called at decoration")


def annotated_by_text(x: int = 1) -> Any:
    raise AssertionError("called at decoration")


annotated_by_text.__annotations__["return"] = "'str'"  # `-> "str"` under the future import of annotations


def constant():  # type: ignore[no-untyped-def]
    return "source"


def formatted():  # type: ignore[no-untyped-def]
    n = 3
    return f"source {n}"


def called():  # type: ignore[no-untyped-def]
    return os.fspath("source")


def branches():  # type: ignore[no-untyped-def]
    if FLAG:
        return "one"
    return None


def raises():  # type: ignore[no-untyped-def]
    raise RuntimeError("no source today")


def numba_with_parameters(x, y):  # type: ignore[no-untyped-def]
    y[0] = x[0]


def numba_without_parameters():  # type: ignore[no-untyped-def]
    for _ in range(3):
        pass


def numba_bare_return(x):  # type: ignore[no-untyped-def]
    if x[0]:
        return
    x[0] = 1


def returns_none():  # type: ignore[no-untyped-def]
    return None


def annotated_none(x) -> None:  # type: ignore[no-untyped-def]
    x[0] = 1


def nested():  # type: ignore[no-untyped-def]
    def inner():  # type: ignore[no-untyped-def]
        return "not mine"

    inner()


@pytest.mark.parametrize("function", [annotated, annotated_by_text, constant, formatted, called, branches])
def test_function_that_returns_source_is_recognised(function: Any) -> None:
    """By its annotation, or by a returned value of a function without parameters; the function is not called."""
    assert returns_source(function)


@pytest.mark.parametrize(
    "function",
    [numba_with_parameters, numba_without_parameters, numba_bare_return, returns_none, annotated_none, nested, raises],
)
def test_other_functions_are_numba_kernels(function: Any) -> None:
    """Such a function returns nothing or None; a return in an inner function is not its own."""
    assert not returns_source(function)


def with_parameter(n):  # type: ignore[no-untyped-def]
    return "source"


def with_parameter_formatted(n):  # type: ignore[no-untyped-def]
    return f"source {n}"


def with_keyword(*, n=3):  # type: ignore[no-untyped-def]
    return f"source {n}"


@pytest.mark.parametrize("function", [with_parameter, with_parameter_formatted, with_keyword])
def test_unannotated_template_is_refused_with_the_annotation(function: Any) -> None:
    """It may be a Numba kernel written wrongly: the message shows the annotation to add."""
    with pytest.raises(OptionError, match="it has parameters and returns a string") as caught:
        cached_kernel(function)

    assert "-> str" in caught.value.hint


def test_decorating_never_calls_the_function() -> None:
    """Reading name, repr and documentation does not call it either."""
    calls = []

    @cached_kernel(arch="sm_90")
    def k() -> str:
        """An empty kernel."""
        calls.append(1)
        return EMPTY

    assert (k.__name__, k.__doc__, bool(repr(k)), callable(k.__wrapped__)) == ("k", "An empty kernel.", True, True)
    assert not calls
    k.key()
    k.key()
    k.compile()
    assert len(calls) == 1


def test_kind_overrules_what_would_be_inferred() -> None:
    """`kind="cuda"` accepts a function whose return gives no hint."""

    def anything(n=1):  # type: ignore[no-untyped-def]
        return str(EMPTY) if n else None

    assert definition_of(cached_kernel(anything, kind="cuda")).kind == "cuda"
    with pytest.raises(OptionError, match="cannot use kind='opencl': there is no such kind"):
        cached_kernel(anything, kind="opencl")


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "it returned nothing, not str"),
        (3, "it returned a value of type int"),
        (["x"], "it returned a value of type list"),
    ],
)
def test_function_that_returns_no_text(returned: Any, says: str) -> None:
    """The error comes at the first use, with the function's name."""

    def k() -> str:
        return returned  # type: ignore[no-any-return]

    with pytest.raises(OptionError, match=says) as caught:
        cached_kernel(k).compile("sm_90")
    assert "test_source.test_function_that_returns_no_text" in str(caught.value)


def test_function_that_returns_bytes() -> None:
    """UTF-8 bytes are text."""

    def k() -> str:
        return EMPTY.encode()  # type: ignore[return-value]

    cached_kernel(k).compile("sm_90")


def test_function_that_raises() -> None:
    """Its own exception is raised, with a note; the next use calls the function again."""
    trouble = [RuntimeError("no source today")]

    def k() -> str:
        if trouble:
            raise trouble.pop()
        return EMPTY

    kernel = cached_kernel(k)
    with pytest.raises(RuntimeError, match="no source today") as caught:
        kernel.compile("sm_90")

    assert "while numba_kcache called" in caught.value.__notes__[0]
    kernel.compile("sm_90")


# -- str, bytes, tuple, Path ----------------------------------------------------------------------------------

PTX = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (EMPTY, "cuda"),
        (PTX, "ptx"),
        ("//\n// Generated by NVIDIA NVVM Compiler\n//\n\n" + PTX, "ptx"),
        (PTX.encode(), "ptx"),
        (EMPTY.encode(), "cuda"),
        ('const char *s = ".version 8.0";' + EMPTY, "cuda"),
        ("// see .version 8.0\n" + EMPTY, "cuda"),
    ],
)
def test_text_is_ptx_where_it_has_the_directive(text: str | bytes, kind: str) -> None:
    """`.version N.M` at the start of a line makes a text PTX; elsewhere it does not."""
    definition = define_text(text, None, 1)

    assert definition.kind == kind
    assert definition.text() == (text if isinstance(text, str) else text.decode())


@pytest.mark.parametrize("text", ["kernel.cu", "  kernels/saxpy.ptx\n", "/abs/k.cu", b"kernel.cu"])
def test_one_line_that_names_a_file_is_refused(text: str | bytes) -> None:
    """A path given as str is a mistake for which NVRTC's message would be misleading."""
    with pytest.raises(OptionError, match="it is a path") as caught:
        cached_kernel(text)

    assert "pathlib.Path" in caught.value.hint


class Markup(str):
    """A str with methods of its own, such as the markup of template engines."""

    def __str__(self) -> str:
        return "other text"

    def __add__(self, other: str) -> str:
        return str.__str__(self) + other.replace("<", "&lt;")

    def encode(self, *_how: str) -> bytes:
        return b"other bytes"


TEMPLATED = 'template <class T> __global__ void k(T x) {}\nextern "C" __global__ void one(float a) {}'


@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: lambda: text], ids=["text", "function"])
def test_text_of_a_subclass_is_compiled_and_keyed_as_its_characters(wrap: Any) -> None:
    """This holds for options that are text, too: members of an enumeration and NumPy's strings are such subclasses."""
    options = {"name": "k<int>", "defines": {"A": "1"}, "options": ["--restrict"], "std": "c++17", "kind": "cuda"}
    given = {"name": Markup("k<int>"), "defines": {Markup("A"): Markup("1")}, "options": [Markup("--restrict")],
             "std": Markup("c++17"), "kind": Markup("cuda")}  # fmt: skip
    kernel = cached_kernel(wrap(Markup(TEMPLATED)), **given)
    kernel.compile("sm_90")

    assert "k<int>(int x)" in repr(kernel)
    assert kernel.key("sm_90") == cached_kernel(TEMPLATED, **options).key("sm_90")


def test_bytes_of_another_encoding_are_taken() -> None:
    """The compiler reads bytes, and so does the key."""
    one, other = b"// \xe9\n" + EMPTY.encode(), b"// \xe8\n" + EMPTY.encode()

    assert decoded(one) == define_text(one, None, 1).text()
    assert cached_kernel(one).key("sm_90") != cached_kernel(other).key("sm_90")
    assert cached_kernel(one, arch="sm_90").cubin()


def test_tuple_of_compile_ptx_is_taken() -> None:
    """(ptx, restype) as `numba.cuda.compile_ptx` returns it is accepted, with any return type."""
    ptx = compiled(EMPTY, "ptx").decode().rstrip("\0")

    for given in ((ptx, None), (ptx.encode(), object())):
        kernel = cached_kernel(given)
        kernel.compile("sm_90")
        assert kernel.params == ()


@pytest.mark.parametrize("thing", [3, None, [EMPTY], {"a": 1}, (EMPTY,), (1, 2), len, SimpleNamespace(), int, os])
def test_anything_else_is_refused(thing: Any) -> None:
    """The error lists the objects that are accepted. None stands for the decorator's form with options."""
    if thing is None:
        assert callable(cached_kernel(None))
        return
    with pytest.raises(OptionError, match="cannot make a kernel of"):
        cached_kernel(thing)


@pytest.mark.parametrize("options", [{}, {"kind": "numba"}])
def test_long_thing_is_not_shown_in_full(options: dict[str, Any]) -> None:
    """A source in an object that is not taken may be megabytes."""
    with pytest.raises(OptionError) as caught:
        cached_kernel(bytearray(10_000), **options)

    assert len(str(caught.value)) < 300


def test_path_is_read_at_first_use(tmp_path: Path) -> None:
    """For `.cu` and `.ptx` files; the file's name is the first guess for the kernel's."""
    (tmp_path / "k.cu").write_text("broken at decoration")
    kernel = cached_kernel(tmp_path / "k.cu")
    (tmp_path / "k.cu").write_text(EMPTY + '\nextern "C" __global__ void other(int a) {}')
    (tmp_path / "p.ptx").write_text(PTX)

    kernel.compile("sm_90")

    assert (kernel.__name__, kernel.params) == ("k", ())
    assert define_path(tmp_path / "p.ptx", None, 1).kind == "ptx"


def test_relative_path_starts_at_the_caller_s_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts in the defining file's folder; where there is no file, in the working directory."""
    (tmp_path / "module").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "module" / "k.cu").write_text(EMPTY)
    monkeypatch.chdir(tmp_path / "elsewhere")
    names: dict[str, Any] = {"cached_kernel": cached_kernel, "Path": Path}
    code = "kernel = cached_kernel(Path('k.cu'))"
    file = tmp_path / "module" / "user.py"
    file.write_text(code)

    exec(compile(code, str(file), "exec"), names)
    names["kernel"].compile("sm_90")
    with pytest.raises(OptionError, match="there is no file"):
        exec(compile(code, "<stdin>", "exec"), names)
    monkeypatch.chdir(tmp_path / "module")
    exec(compile(code, "<stdin>", "exec"), names)


@pytest.mark.parametrize(
    ("name", "says"),
    [("k.txt", r"\.txt is not one of \.cu, \.ptx"), ("k", "no suffix is not"), ("gone.cu", "there is no file")],
)
def test_path_that_is_no_source(tmp_path: Path, name: str, says: str) -> None:
    """Suffix and existence are checked at decoration."""
    with pytest.raises(OptionError, match=says):
        cached_kernel(tmp_path / name)


def test_file_that_is_no_text_is_refused_at_first_use(tmp_path: Path) -> None:
    """The file has a NUL, at which the compiler would stop, or was removed: the error names it."""
    (tmp_path / "k.cu").write_bytes(b"int a;\n\0 ")
    kernel = cached_kernel(tmp_path / "k.cu")
    with pytest.raises(OptionError, match=r"cannot use .*k\.cu"):
        kernel.compile("sm_90")
    (tmp_path / "k.cu").unlink()
    with pytest.raises(OptionError, match=r"cannot use .*k\.cu"):
        kernel.compile("sm_90")


def test_options_resolve_against_the_defining_file(tmp_path: Path) -> None:
    """Relative include_dirs of a `.cu` file start in its folder."""
    (tmp_path / "k.cu").write_text(EMPTY)

    kernel = cached_kernel(tmp_path / "k.cu", include_dirs=["include"])

    assert definition_of(kernel).compile_options.include_dirs == (f"{tmp_path}/include",)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fastmat": True}, "'fastmat'"),
        ({"name": 3}, "cannot use name=3: it is a int"),
        ({"signature": ["int"]}, r"cannot use signature=\['int'\]: it is a list"),
        ({"arch": "sm90"}, "cannot read arch 'sm90'"),
        ({"arch": []}, "it names no target"),
        ({"arch": ["sm_90", "x"]}, "cannot read arch 'x'"),
        ({"cache": "somewhere"}, "cannot use cache='somewhere': it is a str"),
        ({"depends": "a.h"}, "cannot use depends='a.h': it is not a list"),
        ({"depends": {"a", "b"}}, "it is not a list"),
        ({"link": frozenset(["a.cu"])}, "it is not a list"),
        ({"link": "a.cu"}, "cannot use link='a.cu': it is not a list"),
        ({"strict": "no"}, "cannot use strict='no': it is a str"),
        ({"strided": 1}, "cannot use strided=1: it is a int"),
    ],
)  # fmt: skip
def test_option_is_refused_at_decoration(options: dict[str, Any], says: str) -> None:
    """The error does not wait for the first launch."""
    with pytest.raises(OptionError, match=says):
        cached_kernel(EMPTY, **options)


# -- links ----------------------------------------------------------------------------------------------------


def test_link_inputs_are_read_in_order(tmp_path: Path) -> None:
    """Paths of every suffix, relative to the base folder, are read as bytes with kind and folder."""
    for name in ("a.cu", "b.ptx", "c.ltoir", "d.o", "e.a", "f.fatbin", "g.cubin"):
        (tmp_path / name).write_bytes(name.encode())

    found = read_link_inputs(["a.cu", Path("b.ptx"), str(tmp_path / "c.ltoir"), "d.o", "e.a", "f.fatbin", "g.cubin"],
                             str(tmp_path))  # fmt: skip

    assert [each.kind for each in found] == ["cu", "ptx", "ltoir", "object", "library", "fatbin", "cubin"]
    assert [each.name for each in found] == ["a.cu", "b.ptx", "c.ltoir", "d.o", "e.a", "f.fatbin", "g.cubin"]
    assert [each.data for each in found] == [each.name.encode() for each in found]
    assert {each.folder for each in found} == {str(tmp_path)}


def test_linkable_code_of_numba_is_read() -> None:
    """`numba.cuda`'s objects are read by kind and data; those with callbacks are refused, since nothing would call
    them."""
    from numba import cuda

    kinds = {cuda.CUSource: "cu", cuda.PTXSource: "ptx", cuda.Archive: "library", cuda.Cubin: "cubin",
             cuda.Fatbin: "fatbin", cuda.LTOIR: "ltoir", cuda.Object: "object"}  # fmt: skip

    read = read_link_inputs([kind(b"bytes of it", name="n") for kind in kinds], "/base")

    assert [(each.kind, each.name, each.data) for each in read] == [(k, "n", b"bytes of it") for k in kinds.values()]
    with pytest.raises(OptionError, match="callbacks would not run"):
        read_link_inputs([cuda.CUSource(b"x", setup_callback=print)], "")


@pytest.mark.parametrize(
    ("links", "says"),
    [
        ("a.cu", "it is not a list"),
        (b"a.cu", "it is not a list"),
        (3, "it is not a list"),
        (["a.txt"], "cannot link 'a.txt': its suffix is not one of"),
        (["gone.cu"], "cannot link 'gone.cu': .*No such file"),
        ([3], "cannot link a int: it is neither a path nor"),
        ([SimpleNamespace(kind="exe", data=b"")], "it is neither a path nor"),
    ],
)
def test_link_input_is_refused(links: Any, says: str) -> None:
    """An input that cannot be linked is named."""
    with pytest.raises(OptionError, match=says):
        cached_kernel(EMPTY, link=links).key("sm_90")


def test_names_that_differ_by_a_counter_change_the_key() -> None:
    """A name with the counter of Numba's compiles is meant exactly: another kernel may have the other."""
    made = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry NAME() { ret; }\n"
    texts = [made.replace("NAME", name) for name in ("_ZN1kB2v1B4cw51Ev", "_ZN1kB2v2B4cw51Ev")]

    assert len({cached_kernel(each, arch="sm_90").key() for each in texts}) == 2


def test_text_without_the_letter_of_a_word_lacks_the_word() -> None:
    """A text without the letter that FILE_WORDS gives for a word is not searched for it: the word must have that
    letter."""
    assert [letter in word and len(letter) == 1 for word, letter in FILE_WORDS.items()] == [True] * len(FILE_WORDS)

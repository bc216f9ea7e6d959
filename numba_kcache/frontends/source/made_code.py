"""Prepare code that was compiled elsewhere (PTX, cubins, fatbins, LTO-IR) for the linker.

Not here    Parsing a cubin (model.cubin) or a fatbin (model.fatbin).
"""

from __future__ import annotations

from ...errors import OptionError
from ...model import SourceRequest, Target
from ...model.cubin import read_cubin
from ...model.fatbin import cubin_in_fatbin
from ...model.text import encoded
from ...toolchain.nvrtc import NvrtcResult


def given_code(request: SourceRequest) -> NvrtcResult:
    """Take the request's compiled code as if NVRTC had returned it.

    Raises:
        OptionError: It is a cubin for another target, or not a cubin.
    """
    if request.kind == "cubin":
        check_cubin(request.code, request)
    if request.kind == "fatbin" and not request.target.virtual:
        cubin = cubin_in_fatbin(request.code, request.target.cc)  # nvJitLink ignores linked code in a fatbin
        if cubin is not None:
            check_cubin(cubin, request)
            return NvrtcResult(True, "", {"cubin": cubin})
    return NvrtcResult(True, "", {request.kind: request.code or encoded(request.source)})


def check_cubin(code: bytes, request: SourceRequest) -> None:
    """Check that code is a cubin that devices of the target can load.

    Raises:
        OptionError: It is not.
    """
    try:
        made_for = read_cubin(code).sm
    except ValueError as error:
        hint = "give all the bytes that nvcc -cubin or .cubin() made"
        raise OptionError(f"cannot use {request.label} as a cubin", str(error), hint) from None
    target = request.target
    if target.virtual or not Target(*divmod(made_for, 10)).runs_on(target.cc):
        raise OptionError(
            f"cannot use {request.label} for {target}",
            f"it is a cubin for sm_{made_for}",
            f"give the cubin for {target}, or PTX or LTO-IR, which is linked for any",
        )

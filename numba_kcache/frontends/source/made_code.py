"""Code that a compiler made before it came here: PTX, cubins, fatbins and LTO-IR as they are handed to the linker.

Not here    What is in a cubin (model.cubin) and in a fatbin (model.fatbin).
"""

from __future__ import annotations

from ...errors import OptionError
from ...model import Target
from ...model.cubin import read_cubin
from ...model.fatbin import cubin_in_fatbin
from ...model.request import SourceRequest
from ...model.text import encoded
from ...toolchain.nvrtc import NvrtcResult


def made_before(request: SourceRequest) -> NvrtcResult:
    """Code that a compiler made of the request's source before it came here.

    Raises:
        OptionError: It is a cubin for another target, or none.
    """
    if request.kind == "cubin":
        check_cubin(request.code, request)
    if request.kind == "fatbin" and not request.target.virtual:
        cubin = cubin_in_fatbin(request.code, request.target.cc)  # nvJitLink passes over code that is linked
        if cubin is not None:
            check_cubin(cubin, request)
            return NvrtcResult(True, "", {"cubin": cubin})
    return NvrtcResult(True, "", {request.kind: request.code or encoded(request.source)})


def check_cubin(code: bytes, request: SourceRequest) -> None:
    """Refuse what is no cubin, or one that devices of the target do not load.

    Raises:
        OptionError: It is so.
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

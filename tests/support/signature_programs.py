"""A program that launches kernels with given signatures by a Numba and by `cached_kernel`, to compare them."""

from __future__ import annotations

PROGRAM = """
import json, os, re, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
IS_MLIR = sys.argv[2] == "mlir"
if IS_MLIR:
    from numba_cuda_mlir import cuda
else:
    from numba import cuda
from numba_kcache import KernelCache, cached_kernel

cache = KernelCache(sys.argv[1])
matrix = cuda.to_device(np.zeros((10, 6), np.float32))

class Foreign:
    def __init__(self, array, **more):
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "stream": None, **more}

class Number(int):
    pass

ADDRESS = matrix.__cuda_array_interface__["data"][0]
ARRAYS = {
    "C": matrix, "F": matrix.T, "A": matrix[::2, 1:3], "row": matrix[:1], "none": matrix[:0],
    "double": cuda.to_device(np.zeros((3, 4))), "interface": Foreign(matrix), "strided": Foreign(matrix[::2, 1:3]),
    "turned": Foreign(matrix.T), "readonly": Foreign(matrix, data=(ADDRESS, True)), "host": np.zeros((2, 3), "f4"),
    "line": cuda.to_device(np.zeros(12, np.float32)), "number": 3,
}
NUMBERS = {
    "5": 5, "-1": -1, "big": 2**40 + 7, "huge": 2**63 + 5, "2.5": 2.5, "1e300": 1e300, "inf": float("inf"),
    "nan": float("nan"), "True": True, "np.True": np.bool_(True), "i4": np.int32(-7), "u1": np.uint8(200),
    "i8": np.int64(9), "f4": np.float32(1.5), "f8": np.float64(0.1), "f2": np.float16(2), "complex": 1 + 2j,
    "c8": np.complex64(1j), "subclass": Number(4), "text": "1.5",
}
UNDEFINED = {"line", "number", "complex", "c8"}  # one signature: Numba passes too few or too many parameters
SIGNATURES = {
    "int64": "void(float32[:,:], int64)", "int32": "void(float32[:,::1], int32)",
    "float32": "void(float32[:,:], float32)", "float64": "void(float32[::1,:], float64)",
    "bool": "void(float32[:,:], boolean)", "uint64": ["void(float32[:,:], uint64)"],
    "float16": "void(float32[:,:], float16)", "complex64": ["void(float32[:,:], complex64)"],
    "elements": ["void(float32[:,:], int32)", "void(float64[:,:], int32)"],
    "axes": ["void(float32[:], int16)", "void(float32[:,:], int16)"],
    "layouts": ["void(float32[:,:], int64)", "void(float32[:,::1], int64)"],
    "numbers": ["void(float32[:,:], int32)", "void(float32[:,:], float32)"],
    "exact numbers": ["void(float32[:,:], int64)", "void(float32[:,:], float64)"],
}
read_to = os.path.getsize(os.environ["KC_FAKE_LOG"])

def launched(kernel, *arguments):
    '''The types in the symbol of the launched kernel and its parameters, or the error.'''
    global read_to
    error = None
    try:
        kernel[1, 32](*arguments)
    except Exception as problem:
        error = [type(problem).__name__, str(problem).partition("\\n")[0][:60]]
    with open(os.environ["KC_FAKE_LOG"]) as log:
        log.seek(read_to)
        found, read_to = [json.loads(line) for line in log], log.tell()
    found = [each for each in found if each["event"] == "launch"]
    assert len(found) == (error is None), found
    if error:
        return error
    words = found[0]["parameters"]
    if arguments[0] is ARRAYS["host"]:  # each launch has its own copy
        words = words[5:] if not IS_MLIR else words[2:]
    return [re.search("E?[A-Za-z0-9]*$", found[0]["kernel"])[0][-30:], words]

def is_equal(found, wanted, number):
    '''Compare with a launch by the Numba, whose own launcher misreads numbers of other types if it is that of MLIR.'''
    if found == wanted or not IS_MLIR:
        return found == wanted
    if found[0] == "ArgumentError":
        return wanted[0] != "ArgumentError"
    if wanted[0] == "TypeError":
        return type(number) is bool  # passed as 1
    code = {"x": "i8", "i": "i4", "f": "f4", "d": "f8", "y": "u8", "s": "i2"}.get(wanted[0][-1], "f2")
    wanted[1][-1] = np.dtype(code).type(number).tobytes().hex()
    return found == wanted

def echo(value, number):
    pass

def unlaunched(compiled):
    '''The dispatcher, or for MLIR one with the same code whose launcher has seen no argument: what it launches
    depends on those that it saw.'''
    if not IS_MLIR:
        return compiled
    dispatcher = cuda.jit(echo)
    dispatcher.overloads.update(compiled.overloads)
    dispatcher.disable_compile()
    return dispatcher

launches = 0
for name, given in SIGNATURES.items():
    own, ours = cuda.jit(given)(echo), cached_kernel(cuda.jit(given)(echo), cache=cache)
    cases = [(a, n) for a in ARRAYS for n in NUMBERS if a == "C" or n in ("5", "2.5")]
    if type(given) is str:
        cases = [each for each in cases if UNDEFINED.isdisjoint(each)]
    for a, n in cases + cases[::-1]:
        arguments = ARRAYS[a], NUMBERS[n]
        wanted = launched(unlaunched(own), *arguments)
        for way in "checked", "described", "native":
            found = launched(ours, *arguments)
            launches += 1
            if not is_equal(found, wanted, arguments[1]):
                print(f"{name} {a} {n} {way}: {found} beside {wanted}")
print(launches > 1000)
"""
"""Launch each signature with each argument, by the Numba and by `cached_kernel`; print what differs, then True."""

"""`cupy.cuda.compiler` without CuPy: the interface of 14.2, by which its kernels are looked up, compiled and stored.

`CODE` is the module's source. Its function has the names of CuPy's variables and calls a backend and NVRTC in CuPy's
order; `loaded` lists what a module was made of. Children run it by `python -c`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

BACKENDS = """
import abc
class KernelCacheBackend(abc.ABC):
    @abc.abstractmethod
    def load(self, name): ...
    @abc.abstractmethod
    def save(self, name, cubin, source): ...
"""

CODE = """
import hashlib, os, tempfile
from cupy.cuda._compiler_cache import KernelCacheBackend
from numba_kcache.toolchain import load_compilers
from numba_kcache.toolchain.nvrtc import run_nvrtc

class Own(KernelCacheBackend):
    def __init__(self): self.kept, self.asked = {}, []
    def load(self, name):
        self.asked.append(name)
        return self.kept.get(name)
    def save(self, name, cubin, source): self.kept[name] = cubin

class CompileException(Exception): pass

_kernel_cache_backend, _use_pch, loaded, compiled = Own(), False, [], []

def _set_kernel_cache_backend(backend):
    global _kernel_cache_backend
    _kernel_cache_backend = backend

def _encode_cache_payload(names, cubin):
    return b'\\x93CUPYNE\\0' + '\\n'.join(names).encode() + b'\\n\\n' + cubin

def _decode_cache_payload(payload, count):
    names, _, cubin = payload.partition(b'\\n\\n')
    names = names.removeprefix(b'\\x93CUPYNE\\0').decode().split('\\n')
    return (names, cubin) if len(names) == count else None

def _compile_module_with_cache(source, options=(), *, arch='90', backend='nvrtc', name_expressions=None,
                               to_ltoir=False):
    return _compile_with_cache_cuda(source, options, arch, None, backend, False, name_expressions, None, False, False,
                                    to_ltoir)

def _compile_with_cache_cuda(source, options, arch, extra_source=None, backend='nvrtc',
                             enable_cooperative_groups=False, name_expressions=None, log_stream=None,
                             cache_in_memory=False, jitify=False, to_ltoir=False):
    load_compilers(('nvrtc',))  # CuPy asks NVRTC for its version
    key_src = repr((source, options, arch, backend, name_expressions, to_ltoir)).encode()
    name = hashlib.sha1(key_src).hexdigest() + ('.ltoir' if to_ltoir else '.cubin')
    payload = _kernel_cache_backend.load(name)
    if payload is not None:
        has_names = name_expressions and '_decode_cache_payload' in globals()  # 14.1 reads the names from loaded code
        decoded = _decode_cache_payload(payload, len(name_expressions)) if has_names else None
        loaded.append(decoded[1] if decoded else payload)
        return payload
    with tempfile.TemporaryDirectory() as root_dir:
        cu_path = os.path.join(root_dir, name + '.cu')
    compiled.append(name)
    made = run_nvrtc(source, cu_path, (*options, f'-arch=sm_{arch}'), ('cubin',), name_expressions or ())
    if not made.ok:
        raise CompileException(made.log)
    cubin = made.code['cubin']
    names = [made.lowered[each] for each in name_expressions or ()]
    payload = _encode_cache_payload(names, cubin) if names and '_decode_cache_payload' in globals() else cubin
    _kernel_cache_backend.save(name, payload, source)
    loaded.append(cubin)
    return payload
"""

CORE = "def assemble_cupy_compiler_options(options):\n    return (*options, '-I/nowhere/cupy/include')\n"


def modules() -> dict[str, ModuleType]:
    """The modules of a CuPy that is not imported yet, but for `cupy.cuda.compiler`, by name."""
    texts = {
        "cupy": "", "cupy._version": "__version__ = '14.2.0'", "cupy.cuda": "", "cupy.cuda._compiler_cache": BACKENDS,
        "cupy._core": "", "cupy._core.core": CORE,
    }  # fmt: skip
    return {name: _module(name, text) for name, text in texts.items()}


def import_compiler() -> Any:
    """Execute the module, in which the others are imported, as an import does."""
    found: Any = _module("cupy.cuda.compiler", CODE)
    sys.modules["cupy.cuda.compiler"] = found
    return found


def _module(name: str, text: str) -> ModuleType:
    made = ModuleType(name)
    made.__path__ = ["/nowhere/cupy"]  # a package
    exec(compile(text, f"<{name}>", "exec"), made.__dict__)
    return made

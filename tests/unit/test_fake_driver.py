"""The fake driver answers as a GPU's does: children drive it through Numba, cuda.core and cuda.bindings.

Error codes, limits and resource numbers asserted here are what driver 580 on an H200 gave to the same calls.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import numba_server
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run

pytest.importorskip("numba.cuda")
nvrtc: Any = pytest.importorskip("cuda.bindings.nvrtc")

pytestmark = needs_fake_driver

SOURCE = r"""
struct Pair { double a; char b[5]; };
__device__ int table[4] = {1, 2, 3, 4};
__device__ float coefficients[16];
extern "C" __global__ void __launch_bounds__(256) mixed(float a, const float *x, int n, Pair p, char c) {
    __shared__ float s[64];
    s[threadIdx.x % 64] = a;
    __syncthreads();
    if (n < 0) ((float *)x)[0] = s[n & 63] + p.a + p.b[1] + c + coefficients[n & 15] + table[n & 3];
}
extern "C" __global__ void dynamic(int *p) { extern __shared__ int s[]; s[0] = *p; *p = s[threadIdx.x]; }
extern "C" __global__ void empty() {}
"""

PRELUDE = """
import ctypes, json, os, struct, sys, threading
from pathlib import Path
from cuda.bindings import driver
facts, memory = {}, []
CUBIN = {path.stem: path.read_bytes() for path in Path(os.environ["CUBINS"]).glob("*.cubin")}
def code(answer): return int(answer[0])
def value(answer):
    assert int(answer[0]) == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]
def load(image): return driver.cuLibraryLoadData(image, [], [], 0, [], [], 0)
def kernel(library, name=b"mixed"): return value(driver.cuLibraryGetKernel(library, name))
def pack(a, x, n, p, q, c):
    buffer = ctypes.create_string_buffer(41)
    struct.pack_into("<f4xQi4xd5s3xb", buffer, 0, a, x, n, p, q, c)
    return buffer
def pointers(buffer, offsets=(0, 8, 16, 24, 40)):
    array = (ctypes.c_void_p * len(offsets))(*[ctypes.addressof(buffer) + offset for offset in offsets])
    memory.extend((buffer, array))
    return ctypes.addressof(array)
def launch(kernel, grid=(1, 1, 1), block=(32, 1, 1), shared=0, stream=0, parameters=None):
    parameters = pointers(pack(0, 0, 0, 0, b"", 0)) if parameters is None else parameters
    function = driver.CUfunction(int(kernel))
    return code(driver.cuLaunchKernel(function, *grid, *block, shared, stream, parameters, 0))
def begin(device=0):
    assert code(driver.cuInit(0)) == 0
    context = value(driver.cuDevicePrimaryCtxRetain(device))
    driver.cuCtxSetCurrent(context)
    return context
"""
EPILOGUE = "\nprint(json.dumps(facts))"


def compiled(source: str, arch: str) -> bytes:
    """The cubin that NVRTC makes, without its own cache: that would call the driver of this process."""
    options = [b"--no-cache", f"-arch={arch}".encode()]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], [])
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert int(result) == 0, f"NVRTC: {result}"
    cubin = b" " * int(nvrtc.nvrtcGetCUBINSize(program)[1])
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(program)
    return cubin


class Child(NamedTuple):
    """Output of a child under the fake driver, and the driver's log."""

    facts: dict[str, Any]
    log: Path

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return read_log(self.log, *kinds)


Start = Callable[..., Child]


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SOURCE compiled for several architectures, each as `sm_XY.cubin`."""
    folder = tmp_path_factory.mktemp("cubins")
    for arch in ("sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a"):
        (folder / f"{arch}.cubin").write_bytes(compiled(SOURCE, arch))
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, cubins: Path) -> Start:
    """Run a script that fills `facts`, under the fake driver with these settings."""
    library = build()

    def start_child(script: str, **settings: Any) -> Child:
        log = tmp_path_factory.mktemp("child") / "log"
        env = environment(library, log=log, **settings) | {"CUBINS": str(cubins)}
        whole = PRELUDE + script + EPILOGUE
        if "from numba import" in script:
            said = numba_server.output(["-c", whole], env, way="fresh")
        else:
            said = run(whole, env=env).stdout
        return Child(json.loads(said.splitlines()[-1]), log)

    return start_child


def hexed(layout: str, *values: Any) -> str:
    return struct.pack(layout, *values).hex()


# -- Numba and cuda.core -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tour(start: Start) -> Child:
    """One process that does with Numba and cuda.core what a user does."""
    return start(r"""
import warnings
import numpy as np
from cuda.core import Device, LaunchConfig, ObjectCode, launch as core_launch
from numba import cuda
warnings.simplefilter("ignore")

host = np.arange(1000, dtype=np.float32)
array = cuda.to_device(host)
address = array.device_ctypes_pointer.value
facts["round_trip"] = bool((array.copy_to_host() == host).all())
facts["fresh"] = cuda.device_array(64, np.uint8).copy_to_host().tobytes().hex()
facts["address"] = address

context = cuda.current_context()
module = context.create_module_image(ObjectCode.from_cubin(CUBIN["sm_90"]))
function = module.get_function("mixed")
facts["regs"], facts["shared"] = function.attrs.regs, function.attrs.shared
facts["arguments"] = [[p.offset, p.size] for p in function.kernel.arguments_info]
table, size = module.get_global_symbol("table")
values = (ctypes.c_int * 4)()
driver.cuMemcpyDtoH(ctypes.addressof(values), table.device_ctypes_pointer.value, size)
facts["table"] = list(values)

device = Device()
device.set_current()
facts["name"], facts["capability"] = device.name, list(device.compute_capability)
stream = device.create_stream()
facts["stream"] = int(stream.handle)
empty = module.get_function("dynamic").kernel
core_launch(stream, LaunchConfig(grid=(2, 3), block=(32, 2), shmem_size=64), empty, address)
core_launch(stream, LaunchConfig(grid=4, block=32, cluster=2), empty, address)
core_launch(stream, LaunchConfig(grid=4, block=32, is_cooperative=True), empty, address)
launch(function.handle, (5, 1, 1), (32, 1, 1), 16, int(stream.handle),
       pointers(pack(1.5, address, 7, 2.5, b"hello", -3)))
mixed = driver.CUfunction(int(function.handle))
facts["occupancy"] = [
    value(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(mixed, 128, 0)),
    value(driver.cuOccupancyMaxPotentialBlockSize(mixed, None, 0, 0)),
    value(driver.cuOccupancyAvailableDynamicSMemPerBlock(mixed, 1, 128)),
]

@cuda.jit
def add(x, n, out):
    i = cuda.grid(1)
    if i < n:
        out[i] = x[i]

add[8, 128](array, np.int32(1000), array)
add.forall(1000)(array, np.int32(1000), array)
own = cuda.stream()
facts["own_stream"] = int(own.handle)
add[8, 128, own](array, np.int32(1000), array)
event = cuda.event()
event.record(own)
event.wait(cuda.external_stream(facts["stream"]))
event.synchronize()
device.allocate(100, stream=stream).close()
pinned = cuda.pinned_array(10)
managed = cuda.managed_array(10)
managed[:] = 3
facts["managed"] = managed.tolist()
called = []
callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called.append)
driver.cuLaunchHostFunc(stream.handle, driver.CUhostFn(ctypes.cast(callback, ctypes.c_void_p).value), 0)
facts["called"] = len(called)

context.reset()
facts["after_reset"] = bool((cuda.to_device(host).copy_to_host() == host).all())
again = context.create_module_image(ObjectCode.from_cubin(CUBIN["sm_90a"])).get_function("empty")
facts["launch_after_reset"] = launch(again.handle, parameters=0)
cuda.close()
try:
    cuda.to_device(host)
except Exception as error:
    facts["after_close"] = str(error)
driver.cuDevicePrimaryCtxRetain(0)
facts["after_retain"] = bool((cuda.to_device(host).copy_to_host() == host).all())
""")


@pytest.mark.slow
def test_array_survives_round_trip(tour: Child) -> None:
    """An array that Numba copies to the device comes back from it, before and after a reset."""
    assert tour.facts["round_trip"]
    assert tour.facts["after_reset"]


def test_fresh_memory_is_not_zero(tour: Child) -> None:
    """Code that forgets to clear device memory does not get away with it."""
    assert tour.facts["fresh"] == "a5" * 64


def test_device_is_as_asked(tour: Child) -> None:
    """Name and compute capability are those that the environment asked for."""
    assert (tour.facts["name"], tour.facts["capability"]) == ("Fake GPU sm_90", [9, 0])


def test_load_logs_the_cubin(tour: Child, cubins: Path) -> None:
    """Size and CRC-32 say which image was loaded: the one handed over, all of it."""
    cubin = (cubins / "sm_90.cubin").read_bytes()

    first = tour.events("load")[0]

    assert (first["bytes"], first["crc32"], first["sm"]) == (len(cubin), zlib.crc32(cubin), 90)


def test_kernel_is_described_by_its_cubin(tour: Child) -> None:
    """Parameters, registers, shared memory come from the cubin, the latter without the system's share."""
    assert tour.facts["arguments"] == [[0, 4], [8, 8], [16, 4], [24, 16], [40, 1]]
    assert tour.facts["regs"] > 0
    assert tour.facts["shared"] == 64 * 4


def test_variable_has_its_initial_bytes(tour: Child) -> None:
    """A global of a module holds what the cubin's data section says."""
    assert tour.facts["table"] == [1, 2, 3, 4]


def test_occupancy_is_an_h200s(tour: Child) -> None:
    """A kernel with a bound of 256 threads and 256 bytes of shared memory has the occupancy of an H200."""
    assert tour.facts["occupancy"] == [16, [1056, 256], 48896]


def test_raw_launch_logs_exact_parameter_bytes(tour: Child) -> None:
    """Each parameter is read through its pointer with the size that the cubin gives it."""
    (launch,) = [event for event in tour.events("launch") if event["kernel"] == "mixed"]

    assert launch["parameters"] == [
        hexed("<f", 1.5),
        hexed("<Q", tour.facts["address"]),
        hexed("<i", 7),
        hexed("<d5s3x", 2.5, b"hello"),
        hexed("<b", -3),
    ]
    assert (launch["grid"], launch["block"], launch["shared_bytes"]) == ([5, 1, 1], [32, 1, 1], 16)
    assert launch["stream"] == tour.facts["stream"]


def test_core_launch_logs_shape_and_attributes(tour: Child) -> None:
    """cuda.core's launches show grid, block, shared memory, cluster and the cooperative attribute."""
    plain, clustered, cooperative = [event for event in tour.events("launch") if event["kernel"] == "dynamic"]

    assert (plain["grid"], plain["block"], plain["shared_bytes"]) == ([2, 3, 1], [32, 2, 1], 64)
    assert plain["parameters"] == [hexed("<Q", tour.facts["address"])]
    assert (plain["cluster"], plain["cooperative"]) == ([1, 1, 1], False)
    assert (clustered["cluster"], clustered["cooperative"]) == ([2, 1, 1], False)
    assert (cooperative["cluster"], cooperative["cooperative"]) == ([1, 1, 1], True)


def test_jitted_kernel_launches(tour: Child) -> None:
    """Numba's flattened arrays arrive: meminfo, parent, items, item size, data, shape, strides of each."""
    launches = [event for event in tour.events("launch") if "add" in event["kernel"]]
    array = [hexed("<Q", field) for field in (0, 0, 1000, 4, tour.facts["address"], 1000, 4)]

    assert [event["parameters"] for event in launches] == [[*array, hexed("<i", 1000), *array]] * 3
    assert [event["stream"] for event in launches] == [0, 0, tour.facts["own_stream"]]


def test_forall_takes_its_block_from_the_kernel(tour: Child) -> None:
    """Numba's `forall` gets a block of whole warps, and a grid that covers the tasks."""
    explicit, forall, _ = [event for event in tour.events("launch") if "add" in event["kernel"]]

    assert (explicit["grid"], explicit["block"]) == ([8, 1, 1], [128, 1, 1])
    assert forall["grid"][0] * forall["block"][0] >= 1000
    assert forall["block"][0] % 32 == 0


def test_waiting_for_an_event_is_logged(tour: Child) -> None:
    """The log shows which stream an event was recorded on and which waits for it."""
    (record,) = tour.events("event_record")
    (wait,) = tour.events("stream_wait")

    assert record["event_handle"] == wait["event_handle"]
    assert (record["stream"], wait["stream"]) == (tour.facts["own_stream"], tour.facts["stream"])


def test_allocations_are_told_apart(tour: Child) -> None:
    """Device, host, managed and virtual memory have letters of their own in the log."""
    assert {event["what"] for event in tour.events("alloc")} == {"d", "h", "m", "v"}
    assert tour.facts["managed"] == [3.0] * 10


def test_host_function_is_called(tour: Child) -> None:
    """A function that is queued on a stream runs once."""
    assert tour.facts["called"] == 1


def test_reset_unloads_and_takes_new_libraries(tour: Child) -> None:
    """ctx.reset() unloads what Numba loaded; the context goes on working."""
    assert tour.facts["launch_after_reset"] == 0
    assert len(tour.events("unload")) == len(tour.events("load"))


def test_closed_numba_works_after_a_retain(tour: Child) -> None:
    """cuda.close() ends the primary context, which cuda.core still holds for retained: Numba is stuck with an
    ended context until somebody retains it again. On the H200 it was no different."""
    assert "CONTEXT_IS_DESTROYED" in tour.facts["after_close"]
    assert tour.facts["after_retain"]


def test_nothing_unknown_was_needed(tour: Child) -> None:
    """Numba, cuda.core, nvJitLink find all they call, but for nvJitLink's way to the driver's own cache."""
    assert {event["call"] for event in tour.events("unknown")} <= {"cuGetExportTable"}


# -- images and lifetimes ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict(start: Start) -> Child:
    """One process that does what is not allowed, through cuda.bindings."""
    return start(r"""
facts["before_init"] = code(driver.cuCtxGetCurrent())
begin()
D = driver.CUdevice(0)

def refusals(image):
    answer = load(image)
    if code(answer):
        return code(answer), code(driver.cuModuleLoadData(image))
    library = answer[1]
    found = driver.cuLibraryGetKernel(library, b"mixed"), driver.cuLibraryGetGlobal(library, b"table")
    count = value(driver.cuLibraryGetKernelCount(library))
    return (0, *map(code, found), count, code(driver.cuModuleLoadData(image)))

cubin = CUBIN["sm_90"]

def of_cuda_12(sm):
    image = bytearray(cubin)
    image[7:9] = 0x33, 7
    image[48:52] = struct.pack("<I", sm << 16 | 0x500 | sm)
    return bytes(image)

facts["images"] = {
    "of CUDA 12, sm_90": refusals(of_cuda_12(90)), "of CUDA 12, sm_80": refusals(of_cuda_12(80)),
    "sm_90": refusals(cubin), "sm_90a": refusals(CUBIN["sm_90a"]), "sm_80": refusals(CUBIN["sm_80"]),
    "sm_100": refusals(CUBIN["sm_100"]), "garbage": refusals(b"garbage-" * 40),
    "truncated": refusals(cubin[:-600] + bytes(600)),
    "ptx": refusals(b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry mixed(){ret;}\0"),
}
library = value(load(cubin))
facts["no_kernel"] = code(driver.cuLibraryGetKernel(library, b"other"))
facts["no_global"] = code(driver.cuLibraryGetGlobal(library, b"other"))
mixed, dynamic = kernel(library), kernel(library, b"dynamic")
facts["twice"] = int(mixed) == int(kernel(library))

facts["launches"] = {
    "fits": launch(mixed, block=(256, 1, 1), shared=48896),
    "threads": launch(mixed, block=(257, 1, 1)), "block_z": launch(mixed, block=(1, 1, 65)),
    "grid_y": launch(mixed, grid=(1, 65536, 1)), "no_grid": launch(mixed, grid=(0, 1, 1)),
    "shared": launch(mixed, shared=48897), "no_parameters": launch(mixed, parameters=0),
    "no_kernel": launch(0), "no_stream": launch(mixed, stream=64),
}
dynamic_shared = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
set_ = lambda kernel, size: code(driver.cuKernelSetAttribute(dynamic_shared, size, kernel, D))
facts["opt_in"] = [set_(mixed, 232448 - 256), set_(mixed, 232448 - 255), set_(dynamic, 232448),
                   launch(dynamic, shared=232448)]
arguments = pointers(pack(0, 0, 0, 0, b"", 0))
facts["too_cooperative"] = code(driver.cuLaunchCooperativeKernel(
    driver.CUfunction(int(mixed)), 99999, 1, 1, 32, 1, 1, 0, 0, arguments))
buffer, size = pack(4.0, 5, 6, 7.0, b"extra", 8), ctypes.c_size_t(41)
extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
facts["extra"] = code(driver.cuLaunchKernel(
    driver.CUfunction(int(mixed)), 7, 1, 1, 32, 1, 1, 0, 0, 0, ctypes.addressof(extra)))

base = value(driver.cuMemAlloc(64))
copy = lambda to, size: code(driver.cuMemcpyHtoD(to, bytes(size), size))
facts["memory"] = [
    copy(base, 64), copy(base, 65), copy(12345, 8), code(driver.cuMemAlloc(0)),
    code(driver.cuMemAlloc(1 << 50)), code(driver.cuMemFree(base)), code(driver.cuMemFree(base)),
]

stream = value(driver.cuStreamCreate(0))
event = value(driver.cuEventCreate(0))
driver.cuStreamDestroy(stream)
driver.cuEventDestroy(event)
facts["destroyed"] = [code(driver.cuStreamQuery(stream)), code(driver.cuEventQuery(event))]

unloaded = value(load(cubin))
dead = kernel(unloaded)
facts["unload"] = [
    code(driver.cuLibraryUnload(unloaded)), launch(dead), code(driver.cuLibraryGetKernel(unloaded, b"mixed")),
    code(driver.cuLibraryUnload(unloaded)), launch(mixed),
]

stream = value(driver.cuStreamCreate(0))
event = value(driver.cuEventCreate(0))
module = value(driver.cuModuleLoadData(cubin))
function = value(driver.cuModuleGetFunction(module, b"mixed"))
before = launch(function)
driver.cuDevicePrimaryCtxReset(0)
facts["reset"] = [before, launch(mixed), code(driver.cuMemAlloc(8))]
begin()
facts["revived"] = [
    launch(mixed), launch(function), launch(mixed, stream=stream), code(driver.cuModuleUnload(module)),
    code(driver.cuEventQuery(event)),
]
facts["unknown"] = code(driver.cuLinkCreate(0, [], []))

def work(count):
    for number in range(count):
        launch(mixed, grid=(1234, 1, 1))
threads = [threading.Thread(target=work, args=(200,)) for _ in range(4)]
[thread.start() for thread in threads]
facts["contextless"] = len(threads)
[thread.join() for thread in threads]
""")


def test_call_before_init_is_refused(strict: Child) -> None:
    """CUDA_ERROR_NOT_INITIALIZED until cuInit was called."""
    assert strict.facts["before_init"] == 3


@pytest.mark.parametrize("image", ["sm_90", "sm_90a", "of CUDA 12, sm_90"])
def test_image_for_this_gpu_is_taken(strict: Child, image: str) -> None:
    """The image loads as a library and as a module, with its kernels and its variable."""
    assert strict.facts["images"][image] == [0, 0, 0, 3, 0]


@pytest.mark.parametrize(
    ("image", "error"),
    [("sm_80", 209), ("sm_100", 209), ("of CUDA 12, sm_80", 209), ("garbage", 200), ("ptx", 200)],
)
def test_wrong_image_is_refused_on_first_use(strict: Child, image: str, error: int) -> None:
    """A library takes anything, and its kernels and variables are refused; a module is refused at once."""
    assert strict.facts["images"][image] == [0, error, error, 0, error]


def test_truncated_cubin_is_refused_at_once(strict: Child) -> None:
    """CUDA_ERROR_INVALID_IMAGE when it is loaded, as a library and as a module."""
    assert strict.facts["images"]["truncated"] == [200, 200]


def test_eager_loading_refuses_at_load(start: Start) -> None:
    """With CUDA_MODULE_LOADING=EAGER a cubin for another GPU fails at the load, not at first use."""
    child = start(
        'begin(); facts["codes"] = [code(load(CUBIN[arch])) for arch in ("sm_90", "sm_80")]',
        eager_loading=True,
    )

    assert child.facts["codes"] == [0, 209]


def test_ptx_is_taken_when_asked(start: Start) -> None:
    """A driver that is told to take PTX loads and launches it."""
    child = start(
        r'begin(); library = value(load(b".version 8.0\n.visible .entry mixed(){ret;}\0"))'
        "\nfacts['code'] = launch(kernel(library))",
        accept_ptx=True,
    )

    assert child.facts["code"] == 0


def test_missing_name_is_not_found(strict: Child) -> None:
    """CUDA_ERROR_NOT_FOUND for kernels and variables; the same kernel has the same handle."""
    assert (strict.facts["no_kernel"], strict.facts["no_global"], strict.facts["twice"]) == (500, 500, True)


def test_launch_keeps_to_the_limits(strict: Child) -> None:
    """Extents, shared memory, parameters and handles are checked against kernel and device."""
    wrong = {name: code for name, code in strict.facts["launches"].items() if name != "fits"}

    assert strict.facts["launches"]["fits"] == 0
    assert wrong == {
        "threads": 1, "block_z": 1, "grid_y": 1, "no_grid": 1, "shared": 1, "no_parameters": 1,
        "no_kernel": 400, "no_stream": 400,
    }  # fmt: skip


def test_opt_in_shared_memory_is_bounded(strict: Child) -> None:
    """A kernel may be given all of a block's 227 KiB less what it has statically, and launches with it."""
    assert strict.facts["opt_in"] == [0, 1, 0, 0]
    assert [event["value"] for event in strict.events("set_attribute")] == [232192, 232193, 232448]


def test_cooperative_grid_must_be_resident(strict: Child) -> None:
    """CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE for more blocks than the device holds."""
    assert strict.facts["too_cooperative"] == 720


def test_parameter_buffer_is_cut_by_the_cubin(strict: Child) -> None:
    """CU_LAUNCH_PARAM_BUFFER_POINTER: the same bytes as through pointers."""
    (launch,) = [event for event in strict.events("launch") if event["grid"] == [7, 1, 1]]

    assert strict.facts["extra"] == 0
    assert launch["parameters"] == [
        hexed("<f", 4), hexed("<Q", 5), hexed("<i", 6), hexed("<d5s3x", 7, b"extra"), hexed("<b", 8),
    ]  # fmt: skip


def test_memory_ends_where_it_ends(strict: Child) -> None:
    """Inside; one byte beyond; nowhere; of no size; of too much; freed; freed twice."""
    assert strict.facts["memory"] == [0, 1, 1, 1, 2, 0, 1]


def test_destroyed_handles_are_refused(strict: Child) -> None:
    """A stream and an event that were destroyed are errors, and not reused."""
    assert strict.facts["destroyed"] == [201, 709]


def test_unloaded_library_is_dead(strict: Child) -> None:
    """An unloaded library has no kernels, does not launch and cannot be unloaded again; other libraries work on."""
    assert strict.facts["unload"] == [0, 400, 400, 400, 0]


def test_reset_ends_what_lived_in_the_context(strict: Child) -> None:
    """A library belongs to no context and outlives it; modules, functions, streams and events do not."""
    assert strict.facts["reset"] == [0, 709, 709]
    assert strict.facts["revived"] == [0, 400, 709, 400, 709]


def test_unserved_function_is_logged_by_name(strict: Child) -> None:
    """A call that this driver does not serve is CUDA_ERROR_NOT_SUPPORTED, and the log has its name."""
    assert strict.facts["unknown"] == 801
    assert [(event["call"], event["result"]) for event in strict.events("unknown")] == [("cuLinkCreate", 801)]


def test_threads_without_context_cannot_launch(strict: Child) -> None:
    """The current context is each thread's own."""
    assert strict.facts["contextless"] == 4
    assert [event for event in strict.events("launch") if event["grid"] == [1234, 1, 1]] == []


# -- devices, processes, faults ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(start: Start) -> Child:
    return start(
        r"""
import numpy as np
from numba import cuda
facts["capabilities"] = [list(gpu.compute_capability) for gpu in cuda.gpus]
first, second = begin(0), begin(1)
facts["codes"] = {}
for ordinal, context in enumerate((first, second)):
    driver.cuCtxSetCurrent(context)
    for arch in ("sm_90", "sm_80"):
        library = value(load(CUBIN[arch]))
        facts["codes"][f"{arch} on {ordinal}"] = code(driver.cuLibraryGetKernel(library, b"mixed"))
driver.cuCtxSetCurrent(first)
mixed = kernel(value(load(CUBIN["sm_90"])))
here = launch(mixed)
driver.cuCtxSetCurrent(second)
facts["moved"] = [here, launch(mixed)]

def work(context, number):
    driver.cuCtxSetCurrent(context)
    for _ in range(200):
        launch(mixed, grid=(number, 1, 1))
threads = [threading.Thread(target=work, args=(first, number)) for number in range(1, 5)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""",
        devices=(90, 86),
    )


@pytest.mark.slow
def test_devices_have_their_own_capability(pair: Child) -> None:
    """Two devices are of the two capabilities that were requested."""
    assert pair.facts["capabilities"] == [[9, 0], [8, 6]]


def test_cubin_fits_its_major_from_its_minor_on(pair: Child) -> None:
    """An sm_80 cubin runs on 8.6 and not on 9.0, an sm_90 cubin the other way round."""
    assert pair.facts["codes"] == {"sm_90 on 0": 0, "sm_80 on 0": 209, "sm_90 on 1": 209, "sm_80 on 1": 0}


def test_architecture_specific_cubin_fits_one_capability(start: Start) -> None:
    """sm_100 runs on 10.3, sm_100a does not: the `a` is read from the cubin."""
    child = start(
        'begin(); facts["codes"] = [code(load(CUBIN[arch])) for arch in ("sm_100", "sm_100a")]',
        devices=(103,),
        eager_loading=True,
    )

    assert child.facts["codes"] == [0, 209]


def test_kernel_of_the_other_device_does_not_launch(pair: Child) -> None:
    """CUDA_ERROR_NO_BINARY_FOR_GPU after the program moved to a device of another capability."""
    assert pair.facts["moved"] == [0, 209]


def test_log_lines_of_threads_stay_whole(pair: Child) -> None:
    """Four threads launch 200 times each: 800 lines, all of them JSON."""
    grids = [event["grid"][0] for event in pair.events("launch") if not event["result"]][1:]

    assert sorted(grids) == sorted([1, 2, 3, 4] * 200)


@pytest.mark.slow
def test_driver_without_devices_is_no_device(start: Start) -> None:
    """cuInit says CUDA_ERROR_NO_DEVICE, and Numba that CUDA is not available."""
    child = start(
        'from numba import cuda\nfacts |= {"init": code(driver.cuInit(0)), "numba": cuda.is_available()}',
        devices=(),
    )

    assert child.facts == {"init": 100, "numba": False}


def test_forked_child_is_not_initialised(start: Start) -> None:
    """After a fork the child gets CUDA_ERROR_NOT_INITIALIZED from everything; the parent goes on."""
    child = start(r"""
begin()
mixed = kernel(value(load(CUBIN["sm_90"])))
reader, writer = os.pipe()
if os.fork() == 0:
    answers = [driver.cuInit(0), driver.cuCtxGetDevice(), driver.cuMemAlloc(8), load(CUBIN["sm_90"]),
               driver.cuLinkCreate(0, [], [])]
    answers = [*map(code, answers), launch(mixed)]
    os.write(writer, json.dumps(answers).encode())
    os._exit(0)
os.wait()
facts["child"] = json.loads(os.read(reader, 1000))
facts["parent"] = launch(mixed)
""")

    assert child.facts == {"child": [3] * 6, "parent": 0}


def test_child_forked_before_the_driver_is_initialised_has_its_own_settings(start: Start) -> None:
    """This holds even if the parent has queried the version, which reads the settings; the parent keeps its own."""
    child = start(r"""
driver.cuDriverGetVersion()
reader, writer = os.pipe()
if os.fork() == 0:
    os.environ["KC_FAKE_DEVICES"] = "3"
    os.environ["KC_FAKE_DRIVER_VERSION"] = "12090"
    assert code(driver.cuInit(0)) == 0
    os.write(writer, json.dumps([value(driver.cuDriverGetVersion()), value(driver.cuDeviceGetCount())]).encode())
    os._exit(0)
os.wait()
facts["child"] = json.loads(os.read(reader, 1000))
driver.cuInit(0)
facts["parent"] = [value(driver.cuDriverGetVersion()), value(driver.cuDeviceGetCount())]
""")

    assert child.facts == {"child": [12090, 3], "parent": [13000, 1]}


def test_fault_hits_the_nth_call(start: Start) -> None:
    """A rule with a number fails that call alone, one with `*` every call; the log says so."""
    child = start(
        r"""
begin()
facts["loads"] = [code(load(CUBIN["sm_90"])) for _ in range(3)]
facts["alloc"] = [code(driver.cuMemAlloc(8)) for _ in range(2)]
facts["launch"] = launch(kernel(value(load(CUBIN["sm_90"]))))
""",
        fail=("cuLibraryLoadData:700@2", "cuMemAlloc:2@*"),
    )

    assert child.facts == {"loads": [0, 700, 0], "alloc": [2, 2], "launch": 0}
    assert [(event["call"], event["result"], event["seen"]) for event in child.events("fault")] == [
        ("cuLibraryLoadData", 700, 2), ("cuMemAlloc", 2, 1), ("cuMemAlloc", 2, 2),
    ]  # fmt: skip


@pytest.mark.slow
def test_fault_reaches_numba_as_its_error(start: Start) -> None:
    """A call that is made to fail raises in Numba what that call raises there."""
    child = start(
        r"""
from numba import cuda
import numpy as np
try:
    cuda.to_device(np.arange(3))
except Exception as error:
    facts["error"] = str(error)
""",
        fail=("cuMemcpyHtoD:719@1",),
    )

    assert "CUDA_ERROR_LAUNCH_FAILED" in child.facts["error"]


def test_capture_records_and_forbids(start: Start) -> None:
    """A capture keeps its launches for the graph, also of a stream that joins it; an allocation spoils it, and so does
    an unload or a query, unless the thread is in relaxed mode."""
    child = start(r"""
begin()
library = value(load(CUBIN["sm_90"]))
stream, other = value(driver.cuStreamCreate(1)), value(driver.cuStreamCreate(1))
fork, join = value(driver.cuEventCreate(0)), value(driver.cuEventCreate(0))
mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
driver.cuStreamBeginCapture(stream, mode)
driver.cuEventRecord(fork, stream)
driver.cuStreamWaitEvent(other, fork, 0)
facts["launches"] = [launch(kernel(library), stream=stream), launch(kernel(library, b"empty"), stream=other)]
driver.cuEventRecord(join, other)
driver.cuStreamWaitEvent(stream, join, 0)
graph = value(driver.cuStreamEndCapture(stream))
runnable = value(driver.cuGraphInstantiate(graph, 0))
facts["graph"] = code(driver.cuGraphLaunch(runnable, stream))
driver.cuStreamBeginCapture(stream, mode)
facts["spoiled"] = [code(driver.cuMemAlloc(8)), code(driver.cuStreamEndCapture(stream))]
facts["after"] = code(driver.cuMemAlloc(8))
for modes in ((0, 0), (0, 1), (1, 0), (2, 0), (0, 2)):  # of the capture, of the thread
    driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode(modes[0]))
    before = value(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode(modes[1])))
    answers = [code(driver.cuLibraryUnload(library)), code(driver.cuEventQuery(fork))]
    driver.cuThreadExchangeStreamCaptureMode(before)
    facts[str(modes)] = [*answers, code(driver.cuStreamEndCapture(stream))]
    library = value(load(CUBIN["sm_90"])) if not answers[0] else library
""")

    assert {name: child.facts.pop(name) for name in list(child.facts) if name[0] == "("} == {
        "(0, 0)": [900, 900, 901], "(0, 1)": [900, 900, 901], "(1, 0)": [900, 900, 901],
        "(2, 0)": [0, 0, 0], "(0, 2)": [0, 0, 0],
    }  # fmt: skip
    (launched,) = child.events("graph_launch")
    assert child.facts == {"launches": [0, 0], "graph": 0, "spoiled": [900, 901], "after": 0}
    assert [event["captured"] for event in child.events("launch")] == [True, True]
    assert launched["kernels"] == ["mixed", "empty"]


# -- building and starting -----------------------------------------------------------------------------


@pytest.mark.slow
def test_builders_at_once_agree(tmp_path: Path) -> None:
    """Processes that build at the same time get one folder with one whole library and nothing else. Their compiler
    copies a library that is there."""
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nexec cp {build()}/libcuda.so.1 "$2"\n')
    compiler.chmod(0o700)
    script = "import sys; from pathlib import Path; from tests.support.fake_driver import build; "
    arguments = [sys.executable, "-c", script + "print(build(Path(sys.argv[1])))", str(tmp_path / "kept")]
    env = {**environment(tmp_path), "CC": str(compiler)}

    builders = [subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {builder.communicate()[0].strip() for builder in builders}

    assert folders == {str(path) for path in (tmp_path / "kept").iterdir()}
    assert sorted(path.name for path in Path(*folders).iterdir()) == ["libcuda.so", "libcuda.so.1"]


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so"])
def test_fake_is_seen_by_its_children_alone(name: str) -> None:
    """Children find the fake under both library names; other children and this process find the real one."""
    script = f"import ctypes\ntry: ctypes.CDLL('{name}')\nexcept OSError: pass\n"
    script += "print(any('kcache-fake-driver' in line for line in open('/proc/self/maps')))"

    plain = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    fake = run(script, env=environment(build()))

    assert (plain.stdout.strip(), fake.stdout.strip()) == ("False", "True")
    assert not [name for name in os.environ if name.startswith("KC_FAKE_")]

"""Launches on everybody's streams, with kernels slow enough to lose a race.

Each test launches `ROUNDS` times; one wrong result fails it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numba_kcache
from numba_kcache import ArgumentError, KernelCache, cached_kernel

pytestmark = pytest.mark.gpu

ROUNDS, N = 20, 1 << 14

SLOW = r"""
extern "C" __global__ void slow(const float *x, float *y, float value, int n, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] + value;
}"""

CYCLES = 10_000_000
"""Five milliseconds: whatever does not wait for it reads what was there before."""


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache")


def source_kernel(cache: KernelCache) -> Callable[..., None]:
    kernel = cached_kernel(SLOW, cache=cache)
    return lambda x, y, value, stream=None: kernel[1, 256, stream](x, y, value, N, CYCLES)


def numba_kernel(cache: KernelCache, module: str = "numba", *, is_specialised: bool = False) -> Callable[..., None]:
    cuda: Any = pytest.importorskip(f"{module}.cuda")

    @cached_kernel(cache=cache)
    def slow(x, y, value, cycles):  # type: ignore[no-untyped-def]
        for _ in range(cycles):  # memory that others may write: the loop stays
            cuda.atomic.add(y, 0, np.float32(0))
        i = cuda.threadIdx.x
        while i < y.size:
            y[i] = x[i] + value
            i += cuda.blockDim.x

    def launch(x: Any, y: Any, value: float, stream: Any = None) -> None:
        arguments = x, y, np.float32(value), 2000
        (slow.specialize(*arguments) if is_specialised else slow)[1, 256, stream](*arguments)

    return launch


def installed_kernel(cache: KernelCache, **options: bool) -> Callable[..., None]:
    from numba import cuda

    numba_kcache.configure(directory=cache.directory)
    numba_kcache.install(**options)

    @cuda.jit(cache=not options)
    def slow(x, y, value, cycles):  # type: ignore[no-untyped-def]
        for _ in range(cycles):
            cuda.atomic.add(y, 0, np.float32(0))
        i = cuda.threadIdx.x
        while i < y.size:
            y[i] = x[i] + value
            i += cuda.blockDim.x

    return lambda x, y, value, stream=0: slow[1, 256, stream](x, y, np.float32(value), 2000)


KINDS: dict[str, Callable[[KernelCache], Callable[..., None]]] = {
    "source": source_kernel,
    "numba": numba_kernel,
    "numba, specialised": lambda cache: numba_kernel(cache, is_specialised=True),
    "mlir": lambda cache: numba_kernel(cache, "numba_cuda_mlir"),
    "installed": installed_kernel,
    "installed for all": lambda cache: installed_kernel(cache, all=True),
}


@pytest.fixture(params=KINDS)
def launch(request: pytest.FixtureRequest, cache: KernelCache) -> Any:
    """A launch of a slow kernel of each kind: y = x + value; loaded, since loading would take longer than it."""
    torch: Any = pytest.importorskip("torch")
    if request.param == "mlir":
        pytest.importorskip("numba_cuda_mlir")
    made = KINDS[request.param](cache)
    warm = torch.zeros(N, device="cuda")
    for _ in range(3):
        made(warm, warm, 0.0)
    torch.cuda.synchronize()
    yield made
    numba_kcache.uninstall()


@pytest.mark.parametrize("kind", KINDS)
def test_first_launch_is_waited_for(kind: str, cache: KernelCache) -> None:
    """The one that compiles or loads the kernel; by PyTorch's current stream, which waits for no other by itself."""
    torch: Any = pytest.importorskip("torch")
    if kind == "mlir":
        pytest.importorskip("numba_cuda_mlir")
    made = KINDS[kind](cache)
    with torch.cuda.stream(torch.cuda.Stream()):
        x, y = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
        made(x, y, 1.0)
        found = y.clone()
    torch.cuda.synchronize()
    numba_kcache.uninstall()
    assert bool((found == 1).all())


class Torch:
    """PyTorch's arrays on its default stream, or on a side stream."""

    def __init__(self, how: str) -> None:
        self.torch: Any = pytest.importorskip("torch")
        self.how = how

    def current(self) -> Any:
        return self.torch.cuda.stream(self.torch.cuda.Stream()) if self.how == "side" else contextlib.nullcontext()

    def full(self, value: float) -> Any:
        return self.torch.full((N,), value, device="cuda")

    def copy(self, x: Any) -> Any:
        return x.clone()

    def read(self, x: Any) -> Any:
        return x.cpu().numpy()


class Cupy:
    """CuPy's arrays on the null stream, on a stream that blocks with it, or on one that does not."""

    def __init__(self, how: str) -> None:
        self.cupy: Any = pytest.importorskip("cupy")
        self.how = how

    def current(self) -> Any:
        if self.how == "null":
            return contextlib.nullcontext()
        return self.cupy.cuda.Stream(non_blocking=self.how == "non-blocking")

    def full(self, value: float) -> Any:
        return self.cupy.full(N, value, self.cupy.float32)

    def copy(self, x: Any) -> Any:
        return x.copy()

    def read(self, x: Any) -> Any:
        return x.get()


WORLDS = {
    "torch default": (Torch, "default"), "torch side": (Torch, "side"), "cupy null": (Cupy, "null"),
    "cupy blocking": (Cupy, "blocking"), "cupy non-blocking": (Cupy, "non-blocking"),
}  # fmt: skip


def world(name: str) -> Any:
    made, how = WORLDS[name]
    return made(how)


@pytest.mark.parametrize("name", WORLDS)
def test_library_sees_the_launch_in_its_own_order(launch: Any, name: str) -> None:
    """What it wrote before is read, what it reads after is written; memory that it frees after the launch is reused by
    operations that come after the kernel."""
    here = world(name)
    wrong = 0
    with here.current():
        for number in range(1, ROUNDS + 1):
            x = here.full(0.0)
            launch(x, x, 1.0)
            x = here.copy(x)
            y = here.full(-1.0)
            launch(x, y, float(number))
            del x
            other = here.full(7.0)
            wrong += int((here.read(here.copy(y)) != number + 1).any() or (here.read(other) != 7).any())
    assert wrong == 0


@pytest.mark.parametrize(
    ("first", "second"), [("torch side", "cupy non-blocking"), ("cupy non-blocking", "torch side"),
                          ("torch default", "cupy non-blocking"), ("cupy null", "torch side")],
)  # fmt: skip
def test_mixed_libraries_wait_for_each_other(launch: Any, first: str, second: str) -> None:
    """Both directions, whichever comes first."""
    one, two = world(first), world(second)
    wrong = 0
    with one.current(), two.current():
        for number in range(ROUNDS):
            x, y = one.full(0.0), two.full(0.0)
            launch(x, x, float(number))
            launch(x, y, 1.0)
            z = two.copy(y)
            launch(y, x, 1.0)
            wrong += int((two.read(z) != number + 1).any() or (one.read(one.copy(x)) != number + 2).any())
    assert wrong == 0


@pytest.mark.parametrize("name", ["torch side", "cupy non-blocking"])
def test_threads_have_streams_of_their_own(launch: Any, name: str) -> None:
    """Each launch goes to the current stream of its thread."""
    failures: list[Any] = []

    def work(number: int) -> None:
        here = world(name)
        try:
            with here.current():
                for step in range(ROUNDS):
                    x = here.full(float(number))
                    launch(x, x, float(step))
                    if (here.read(here.copy(x)) != number + step).any():
                        failures.append((number, step))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(100 * number,)) for number in (1, 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures


def test_launch_is_captured_and_replayed_by_pytorch(launch: Any, request: pytest.FixtureRequest) -> None:
    """Under `torch.cuda.graph`, whose stream is the current one."""
    if "installed" in request.node.name:
        pytest.skip("Numba's default stream is no part of a capture")
    torch: Any = pytest.importorskip("torch")
    x, y = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(x, y, 1.0)
        z = y * 2
    for number in range(ROUNDS):
        x.fill_(number)
        graph.replay()
        assert bool((z == 2 * (number + 1)).all())


def test_launch_is_captured_and_replayed_by_cupy(launch: Any, request: pytest.FixtureRequest) -> None:
    """A capture of CuPy's current stream."""
    if "installed" in request.node.name:
        pytest.skip("Numba's default stream is no part of a capture")
    cupy: Any = pytest.importorskip("cupy")
    x, y = cupy.zeros(N, cupy.float32), cupy.zeros(N, cupy.float32)
    launch(x, y, 1.0)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        launch(x, y, 1.0)
        graph = stream.end_capture()
    for number in range(ROUNDS):
        x[:] = number
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert bool((y == number + 1).all())


def test_backward_pass_launches_on_the_stream_of_the_forward_pass(launch: Any) -> None:
    """Autograd's thread makes it the current one."""
    torch: Any = pytest.importorskip("torch")

    class Shifted(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = torch.empty_like(x)
            launch(x.detach(), y, 1.0)
            return y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            out = torch.empty_like(grad)
            launch(grad.contiguous(), out, 1.0)
            return out

    side = torch.cuda.Stream()
    for _ in range(ROUNDS):
        with torch.cuda.stream(side):
            x = torch.zeros(N, device="cuda", requires_grad=True)
            (Shifted.apply(x) * 3).sum().backward()
            assert bool((x.grad.clone() == 4).all())


def test_jax_arrays_are_inputs_and_are_kept(launch: Any, cache: KernelCache, request: pytest.FixtureRequest) -> None:
    """Results still being computed, deleted right after the launch, while JAX allocates and computes on."""
    jax: Any = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no CUDA")
    cupy: Any = pytest.importorskip("cupy")
    if request.node.callspec.params["launch"].startswith("installed"):
        pytest.skip("numba-cuda 0.30.4 itself exports the array to the stream -1; JAX 0.11 raises, or ends the process")
    matrix = jax.numpy.ones((2048, 2048))
    busy = jax.jit(lambda m, value: ((m @ m @ m) * 0 + value).ravel()[:N])
    wrong = 0
    for number in range(ROUNDS):
        x = busy(matrix, float(number))
        y = cupy.zeros(N, cupy.float32)
        launch(x, y, 1.0)
        x.delete()
        del x
        later = [jax.numpy.full(N, -5.0) for _ in range(4)]
        wrong += int((y.copy().get() != number + 1).any())
        del later
    assert wrong == 0

    kernel = cached_kernel('extern "C" __global__ void write(float *x) { x[0] = 1; }', cache=cache)
    with pytest.raises(ArgumentError, match="JAX's arrays are inputs"):
        kernel[1, 1](jax.numpy.zeros(4))


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_given_streams_overlap(cache: KernelCache, library: str) -> None:
    """Two slow kernels on two given streams take the time of one, by events."""
    module: Any = pytest.importorskip(library)
    kernel = cached_kernel(SLOW, cache=cache)
    here = Torch("default") if library == "torch" else Cupy("null")
    x = [here.full(0.0), here.full(0.0)]
    streams = [module.cuda.Stream() if library == "torch" else module.cuda.Stream(non_blocking=True) for _ in x]
    timed = {"enable_timing": True} if library == "torch" else {}
    start, *ends = [module.cuda.Event(**timed) for _ in range(3)]
    (module.cuda.synchronize if library == "torch" else module.cuda.Device().synchronize)()
    for each, stream in zip(x, streams, strict=True):
        kernel[1, 256, stream](each, each, 0.0, N, 1000)
        stream.synchronize()
    start.record(streams[0])
    for each, stream, end in zip(x, streams, ends, strict=True):
        kernel[1, 256, stream](each, each, 0.0, N, 40 * CYCLES)
        end.record(stream)
    for each in ends:
        each.synchronize()
    elapsed = start.elapsed_time if library == "torch" else lambda end: module.cuda.get_elapsed_time(start, end)
    first, second = (elapsed(each) for each in ends)
    assert second < 1.5 * first


def test_module_with_a_kernel_that_still_runs_on_a_side_stream_stays(cache: KernelCache) -> None:
    """Forgotten, collected, or with its stream let go: the kernel ends with the right result."""
    cupy: Any = pytest.importorskip("cupy")
    y = cupy.zeros(N, cupy.float32)
    other = cached_kernel('extern "C" __global__ void other(float *y) {}', cache=cache)
    for number in range(ROUNDS):
        kernel = cached_kernel(SLOW.replace("value;", f"value + {number};"), cache=cache)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            kernel[1, 256](y, y, 1.0, N, CYCLES)
            result = y.copy()
            y.fill(0)
        if number % 2:
            kernel.forget()
        del kernel
        done = stream.record()
        del stream
        gc.collect()
        other.forget()
        other[1, 1](y)
        done.synchronize()
        assert bool((result == number + 1).all())


def test_launches_on_a_side_stream_keep_no_memory(cache: KernelCache) -> None:
    """A million launches on a side stream; also on ten thousand streams, each made for a few launches."""
    torch: Any = pytest.importorskip("torch")
    cupy: Any = pytest.importorskip("cupy")
    import resource

    kernel = cached_kernel('extern "C" __global__ void k(float *y, int n) {}', cache=cache)

    def grown(work: Callable[[], None]) -> int:
        work()
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    def many() -> None:
        with torch.cuda.stream(side):
            launch = kernel[1, 32]
            for _ in range(500_000):
                launch(y, 1)
        side.synchronize()

    def streams() -> None:
        for _ in range(5000):
            with cupy.cuda.Stream(non_blocking=True):
                kernel[1, 32](z, 1)

    side, y, z = torch.cuda.Stream(), torch.zeros(32, device="cuda"), cupy.zeros(32, cupy.float32)
    assert grown(many) < 1024  # KiB
    assert grown(streams) < 4096


def test_per_thread_default_streams(tmp_path: Path) -> None:
    """With CuPy's and cuda.bindings' settings the current stream is the per-thread one, in each thread."""
    pytest.importorskip("cupy")
    script = f"""
import sys, threading
import cupy
from numba_kcache import KernelCache, cached_kernel
kernel = cached_kernel({SLOW!r}, cache=KernelCache(sys.argv[1]))
wrong = []
def work():
    for number in range({ROUNDS}):
        x = cupy.zeros({N}, cupy.float32)
        kernel[1, 256](x, x, float(number), {N}, {CYCLES})
        if (x.copy().get() != number).any():
            wrong.append(number)
threads = [threading.Thread(target=work) for _ in range(2)]
[each.start() for each in threads], [each.join() for each in threads]
assert not wrong, wrong
"""
    environment = {
        **os.environ, "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM": "1", "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "cache")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]

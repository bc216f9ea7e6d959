import sys,time; sys.path.insert(0,__import__('os').getcwd())
import numpy as np
import numba_kcache
from numba_kcache import cached_kernel
SRC=r"""
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}"""
@cached_kernel(arch="auto")
def saxpy():
    return SRC
from numba import cuda
N=1<<16
x, y = cuda.to_device(np.ones(N, np.float32)), cuda.to_device(np.ones(N, np.float32))
cuda.synchronize()
log=[]; depth=[0]
def wrap(owner,name):
    f=getattr(owner,name)
    def g(*a,**k):
        depth[0]+=1; t=time.perf_counter()
        try: return f(*a,**k)
        finally: dt=time.perf_counter()-t; depth[0]-=1; log.append((t,depth[0],f"{getattr(owner,'__name__',owner)}.{name}",dt))
    setattr(owner,name,g)
import numba_kcache.kernel as K, numba_kcache.resolver as R, numba_kcache.launch.loader as L, numba_kcache.launch.arguments as A, numba_kcache.store.disk as D, numba_kcache.toolchain.libraries as T, numba_kcache.jobs as J
from numba_kcache.observe.events import Events
for o,n in [(K,'process_resolver'),(K.CachedKernel,'_bind'),(K.CachedKernel,'_loaded'),(K.CachedKernel,'_resolve_for_device'),(K,'current_device'),(K,'current_ordinal'),(K,'current_ordinal'),(K,'make_launcher'),(K,'check_launch'),(K,'launch_shape'),(K,'source_job'),(R.Resolver,'resolve'),(R.Resolver,'components'),(R.Resolver,'_look_up'),(R,'derive'),(R.Resolver,'_read'),(R.Resolver,'_artifact'),(D.DiskStore,'get'),(D.DiskStore,'get_manifest'),(L.Loader,'load'),(L,'_context'),(L,'_Module'),(L._Module if hasattr(L,'_Module') else L,'kernel'),(T.Toolchain,'library'),(T.Toolchain,'version'),(T,'_holds'),(A.Launcher,'bind'),(A.Launcher,'launch'),(A.Launcher,'__init__'),(Events,'emit')]:
    if hasattr(o,n): wrap(o,n)
t=time.perf_counter()
saxpy[N // 256, 256](2.0, x, y, N)
cuda.synchronize()
tt=time.perf_counter()-t
for t0,d,n,dt in sorted(log): print(f"{(t0-t)*1e6:8.0f} {'  '*d}{n} {dt*1e6:.0f}")
print('first us',tt*1e6)

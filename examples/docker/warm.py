"""Compile all kernels of app.py into the cache, for every target that the image will meet. Needs no GPU and no driver.

Run it: `python examples/docker/warm.py [TARGET ...]`; the Dockerfile does so while the image is built.
"""

import sys

import app

import numba_kcache

TARGETS = sys.argv[1:] or ["sm_80", "sm_90"]

if __name__ == "__main__":
    for kernel in (app.saxpy, app.scale):
        kernel.compile(arch=TARGETS)
    info = numba_kcache.info("process")
    print(f"warmed for {', '.join(TARGETS)}: {info.compiles} compiles, {info.hits} hits; launches skipped")
    numba_kcache.print_info()

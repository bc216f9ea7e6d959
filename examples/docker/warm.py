"""Compile all kernels of app.py into the cache, for every target that the image will run on. Needs no GPU, no driver.

Run it: `python examples/docker/warm.py [TARGET ...]`; the Dockerfile does so while the image is built.
"""

import sys

import app

from numba_kcache import warm_up

if __name__ == "__main__":
    targets = sys.argv[1:] or ["sm_80", "sm_90"]
    print(warm_up(app, arch=targets))
    print("compiled ahead: launches skipped")

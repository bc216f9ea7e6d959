"""The disassembly of a cubin, by the toolkit's nvdisasm."""

from __future__ import annotations

import subprocess
import tempfile

from ..errors import LaunchError, ToolchainMissingError


def disassemble(cubin: bytes) -> str:
    """The SASS of a cubin, by the toolkit's nvdisasm.

    Raises:
        ToolchainMissingError: It is not installed.
        LaunchError: It refuses the cubin.
    """
    from cuda.pathfinder import find_nvidia_binary_utility

    tool = find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        raise ToolchainMissingError(
            "cannot disassemble", "nvdisasm is not installed", "pip install nvidia-cuda-nvdisasm"
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        printed = subprocess.run([tool, file.name], capture_output=True, text=True, check=False)
    if printed.returncode != 0:
        raise LaunchError("cannot disassemble", printed.stderr.strip())
    return printed.stdout

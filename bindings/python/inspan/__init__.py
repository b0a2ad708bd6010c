"""Inspan: distributed training on unequal machines.

This package is thin: everything that moves data is in libinspan, which is loaded by ctypes. `inspan.torch` is the process
group of PyTorch; importing it is what needs PyTorch, `import inspan` alone does not.
"""

from inspan._lib import CommError, Status, library_path

__all__ = ["CommError", "Status", "library_path"]

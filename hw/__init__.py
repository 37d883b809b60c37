"""Hardware: which device there is, kernels for it, and whether it gives the emulation's bits.

Its modules build on `numerics` alone. `device` resolves a device that was named, and never chooses another in its
place; `validate` compares operations on it with the CPU, bit for bit, and judges anybody's implementation of the seam
(`seam`, `validate_ops`). `ops` is the seam as Triton kernels (README.md beside this file), which `choose` hands to a
trainer. Import the module you need: `hw.validate`, ...
"""

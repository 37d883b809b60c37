"""Hardware: which device there is, and whether it gives the emulation's bits.

Its modules build on `numerics` alone. `device` resolves a device that was named, and never chooses another in its
place; `validate` compares operations on it with the CPU, bit for bit, and judges anybody's implementation of the seam
(`seam`, `validate_ops`). Import the module you need: `hw.validate`, ...
"""

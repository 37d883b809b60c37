"""The mixture-of-experts trainer: recipe, model, data, checkpoints and the training loop.

Its modules build on `numerics` alone. The operations of the expert path come in as an `ops` module, so the same
trainer runs them in emulation or as kernels. Import the module you need: `reference.train`, `reference.data`, ...
"""

import os

# Or JAX takes most of the GPU's memory, and PyTorch's tests want some.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# What somebody has tuned on this machine must not matter.
os.environ["FLASHSTEPS_TUNING"] = ""

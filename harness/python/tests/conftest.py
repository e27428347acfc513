import os

# Or JAX takes most of the GPU's memory, and PyTorch's tests want some.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Several devices of JAX on the CPU, for shard_map. Read when JAX is first used.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
# What somebody has tuned on this machine must not matter.
os.environ["FLASHSTEPS_TUNING"] = ""

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

# Or JAX takes most of the GPU's memory, and PyTorch's tests want some.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Several devices of JAX on the CPU, for shard_map. Read when JAX is first used.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
# What somebody has tuned on this machine must not matter.
os.environ["FLASHSTEPS_TUNING"] = ""


@pytest.fixture(scope="session")
def training():
    """harness/examples/train.py: run() has the losses and the transformer, with its own attention or PyTorch's math."""
    import torch

    path = Path(__file__).parents[2] / "examples" / "train.py"
    if not path.exists():
        pytest.skip("an sdist has no examples")
    spec = importlib.util.spec_from_file_location("train", path)
    spec.loader.exec_module(example := importlib.util.module_from_spec(spec))

    def math(*arrays):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            q, k, v = (x.transpose(1, 2) for x in arrays)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    def run(attend, *options):
        torch.manual_seed(1)
        model = example.Transformer(attend)
        return list(example.train(model, *options)), model

    return SimpleNamespace(attend=example.attend, math=math, run=run)

"""Trains a tiny transformer with flashsteps.attention. It learns to say again what it has read: half of each sequence
is random, and the other half repeats it.

    python harness/examples/train.py [STEPS]

On a GPU it computes in bfloat16, under autocast. Without one it computes in float32, and the emulator runs the kernels.
"""

import sys

import flashsteps
import torch
from torch import nn
from torch.nn import functional

VOCABULARY, HALF, WIDTH, HEADS = 32, 32, 128, 2


def attend(q, k, v):
    return flashsteps.attention(q, k, v, causal=True, layout="bshd")


class Block(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend = attend
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).unbind(2)  # each [batch, s, heads, d]
        x = x + self.out(self.attend(q, k, v).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self, attend=attend, layers=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(2 * HALF, WIDTH)
        self.blocks = nn.Sequential(*(Block(attend) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))

    def forward(self, tokens):
        return self.head(self.blocks(self.tokens(tokens) + self.places.weight[: tokens.shape[1]]))


def train(model, steps, batch, device):
    """The loss of every step: of what a sequence repeats."""
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        random = torch.randint(VOCABULARY, (batch, HALF), generator=generator)
        tokens = torch.cat([random, random], dim=1).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits[:, HALF - 1 :].flatten(0, 1).float(), tokens[:, HALF:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


if __name__ == "__main__":
    torch.manual_seed(1)
    on_gpu = flashsteps.missing_gpu() is None and torch.cuda.is_available()
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100 if on_gpu else 20
    for step, loss in enumerate(train(Transformer(), steps, 64 if on_gpu else 2, "cuda" if on_gpu else "cpu")):
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step:4}  loss {loss:.3f}", flush=True)

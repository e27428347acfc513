"""flashsteps in a model of Hugging Face transformers: a small Llama with random weights, on the CPU or a GPU."""

from __future__ import annotations

import flashsteps
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")
import flashsteps.transformers  # noqa: E402

DEVICES = ["cpu"] if flashsteps.missing_gpu() or not torch.cuda.is_available() else ["cpu", "cuda"]
PADDING = {  # of two sequences of six tokens
    "none": [[1] * 6, [1] * 6],
    "left": [[1] * 6, [0, 0, 1, 1, 1, 1]],
    "all": [[0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]],
}


def make_model(device="cpu", kind=transformers.LlamaForCausalLM, **options):
    torch.manual_seed(1)
    config = kind.config_class(
        vocab_size=97,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        pad_token_id=0,
        eos_token_id=None,
        initializer_range=0.2,  # or all tokens are about equally likely
        **options,
    )
    return kind(config).to(device, torch.float16 if device == "cuda" else torch.float32).eval()


def tokens(device, shape=(2, 6)):
    return torch.randint(1, 97, shape, generator=torch.Generator().manual_seed(1)).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_greedy_tokens(device, padding, cache):
    model, inputs = make_model(device), tokens(device)
    mask = torch.tensor(PADDING[padding], device=device)
    results = []
    for implementation in ("sdpa", "fsteps"):
        model.set_attn_implementation(implementation)
        results.append(
            model.generate(
                inputs,
                attention_mask=mask,
                max_new_tokens=5,
                do_sample=False,
                cache_implementation=cache,
                disable_compile=True,
                output_logits=True,
                return_dict_in_generate=True,
            )
        )
    assert torch.equal(results[0].sequences, results[1].sequences)
    tolerance = 1e-3 if device == "cpu" else 5e-2
    for sdpa, ours in zip(results[0].logits, results[1].logits):
        assert torch.allclose(sdpa, ours, rtol=0, atol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padding", ["none", "left"])
def test_training(device, padding):
    """The loss, and the gradients of all weights, are those of PyTorch's attention."""
    model, inputs = make_model(device).train(), tokens(device)
    mask = torch.tensor(PADDING[padding], device=device)
    labels = torch.where(mask == 1, inputs, -100)
    losses, gradients = [], []
    for implementation in ("sdpa", "fsteps"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        loss = model(inputs, attention_mask=mask, labels=labels).loss
        loss.backward()
        losses.append(loss.item())
        gradients.append([weight.grad.double() for weight in model.parameters()])
    tolerance = 1e-4 if device == "cpu" else 2e-2
    assert abs(losses[0] - losses[1]) <= tolerance * losses[0]
    for sdpa, ours in zip(*gradients, strict=True):
        assert (sdpa - ours).norm() <= tolerance * sdpa.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_padding_on_the_right(device):
    """Without generating. What the model says at the padding itself means nothing."""
    model, inputs = make_model(device), tokens(device)
    mask = torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]], device=device)
    logits = []
    for implementation in ("sdpa", "fsteps"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            logits.append(model(inputs, attention_mask=mask).logits[mask.bool()])
    assert torch.allclose(*logits, rtol=0, atol=1e-3 if device == "cpu" else 5e-2)


@pytest.mark.parametrize("mask", [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]])
def test_without_a_causal_mask(mask):
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    model, inputs, mask = transformers.BertModel(config).eval(), tokens("cpu"), torch.tensor([[1] * 6, mask])
    states = []
    for implementation in ("sdpa", "fsteps"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            states.append(model(inputs, attention_mask=mask).last_hidden_state[mask.bool()])
    assert torch.allclose(*states, rtol=0, atol=1e-3)


def test_several_tokens_into_a_cache():
    """More queries than one, fewer than keys; the mask is aligned at the ends."""
    model, inputs = make_model(), tokens("cpu", (2, 9))
    mask = torch.tensor([[1] * 9, [0] * 3 + [1] * 6])
    logits = []
    for implementation in ("sdpa", "fsteps"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            cache = model(inputs[:, :5], attention_mask=mask[:, :5]).past_key_values
            logits.append(model(inputs[:, 5:], attention_mask=mask, past_key_values=cache).logits)
    assert torch.allclose(*logits, rtol=0, atol=1e-3)


@pytest.mark.parametrize("padding", PADDING)
def test_compile(padding):
    model, inputs = make_model(), tokens("cpu")
    model.set_attn_implementation("fsteps")
    mask = torch.tensor(PADDING[padding])

    def forward(inputs, mask):
        return model(inputs, attention_mask=mask, use_cache=False).logits

    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")(inputs, mask)
        assert torch.allclose(compiled[mask.bool()], forward(inputs, mask)[mask.bool()], rtol=0, atol=1e-3)


def test_what_is_refused():
    inputs = tokens("cpu")
    model = make_model()
    model.set_attn_implementation("fsteps")
    with torch.no_grad():
        with pytest.raises(ValueError, match="arbitrary masks are not supported"):
            model(inputs, attention_mask=torch.ones(2, 1, 6, 6))
        with pytest.raises(ValueError, match="attention_mask with holes"):
            model(inputs, attention_mask=torch.tensor([[1] * 6, [1, 0, 1, 1, 1, 1]]))
        with pytest.raises(ValueError, match="packed sequences"):
            model(inputs, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), use_cache=False)
        dropping = make_model(attention_dropout=0.5)
        dropping.set_attn_implementation("fsteps")
        dropping.train()
        with pytest.raises(ValueError, match="dropout is not supported"):
            dropping(inputs)
        windows = make_model(kind=transformers.MistralForCausalLM, sliding_window=4)
        windows.set_attn_implementation("fsteps")
        with pytest.raises(ValueError, match="sliding windows"):
            windows(inputs)
    q = torch.zeros(1, 2, 6, 64).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="FP8 is not supported"):
        flashsteps.transformers._attention(model, q, q, q, None)

"""`blocklab compare` with whole models: a small one is ours at small size, whatever fixes sizes."""

import pytest

import blocklab as bl
from blocklab.cli.part_argument import named_part, sizes_of
from blocklab.errors import BlocklabError

LLAMA = """
import torch
import torch.nn.functional as F
from torch import nn

class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)

class Attention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def turned(self, x):
        d = x.shape[-1]
        f = 10000.0 ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
        angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * f
        a, b = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.n_heads, -1).transpose(1, 2)
                   for f in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, d))

class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))

class Block(nn.Module):
    def __init__(self, dim, n_heads, hidden):
        super().__init__()
        self.attention, self.feed_forward = Attention(dim, n_heads), FeedForward(dim, hidden)
        self.attention_norm, self.ffn_norm = Norm(dim), Norm(dim)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))

class Told(nn.Module):
    '''Its hidden width is an argument.'''

    def __init__(self, vocab_size, dim, n_layers, n_heads, hidden_dim):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(Block(dim, n_heads, hidden_dim) for _ in range(n_layers))
        self.norm, self.output = Norm(dim), nn.Linear(dim, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))

class Ruled(Told):
    '''Its hidden width follows its width.'''

    def __init__(self, vocab_size, dim, n_layers, n_heads):
        super().__init__(vocab_size, dim, n_layers, n_heads, int(8 * dim / 3 / 64) * 64)
"""


@pytest.fixture
def llama(tmp_path):
    path = tmp_path / "my_llama.py"
    path.write_text(LLAMA, encoding="utf-8")
    return path


@pytest.mark.parametrize("preset", ["llama", "mistral", "llama-3-8b"])
@pytest.mark.parametrize("name", ["Ruled", "Told"])
def test_a_right_llama_agrees_with_every_preset_at_the_default_size(run, llama, preset, name):
    changes = ["--set", "positions.base=10000"]
    code, said, _ = run("compare", f"{llama}:{name}", preset, *changes)
    assert code == 0
    assert f"{name} and our model agree" in said


def test_a_hidden_width_that_is_asked_for_is_kept(run, llama):
    wide = ["--set", "block.feed_forward.d_ff=80"]
    code, said, _ = run("compare", f"{llama}:Told", "llama", *wide)
    assert code == 0
    assert "agree" in said
    code, said, _ = run("compare", f"{llama}:Ruled", "llama", *wide)
    assert "hidden width 128; ours 80" in said


def test_what_a_record_fixes_for_its_own_size_follows_the_small_one(tmp_path):
    """Gemma's head_dim, its scale, and its embeddings times the root of d_model."""
    path = tmp_path / "gemma.yaml"
    bl.presets.llama(d_model=64, n_heads=2, n_layers=3, vocab_size=50).with_changes(
        {
            "embedding.scale": 8.0,
            "block.attention.head_dim": 100,
            "block.attention.scale": 0.1,
            "block.feed_forward.d_ff": 300,
        }
    ).to_yaml(path)
    small = named_part(str(path), {}, 48, 4, 2)
    assert small.embedding.scale == 48**0.5
    assert small.block.attention.heads(48) == (4, 4, 12)
    assert small.block.attention.scale is None
    assert sizes_of(small, 48)["d_ff"] == 128
    # At its own size it stays what it is.
    same = named_part(str(path), {}, 64, 2, 2)
    assert same.block.attention.head_dim == 100
    assert same.block.feed_forward.d_ff == 300
    # And what is asked for is given.
    asked = named_part(str(path), {"block.attention.head_dim": 10}, 48, 4, 2)
    assert asked.block.attention.heads(48) == (4, 4, 10)


def test_a_scale_of_its_own_is_no_rule_and_stays(tmp_path):
    path = tmp_path / "own.yaml"
    own = {"embedding.scale": 3.0, "block.attention.scale": 0.5}
    bl.presets.gpt2(d_model=64, n_heads=4, vocab_size=50).with_changes(own).to_yaml(path)
    small = named_part(str(path), {}, 48, 4, 2)
    assert small.embedding.scale == 3.0
    assert small.block.attention.scale == 0.5


def test_a_width_below_the_rule_says_what_to_give():
    with pytest.raises(BlocklabError, match=r"d_model 16 is too small .* give d_ff"):
        sizes_of(named_part("llama", {}, 16, 4, 2), 16)

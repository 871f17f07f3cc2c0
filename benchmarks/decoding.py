"""How fast are tokens written beside transformers' `generate`, on the same weights, in one run?

    python benchmarks/decoding.py [--rounds 3] [--threads N] [--tokens 80] [--json FILE]

A Llama of 135 million parameters (the shape of SmolLM2-135M) writes greedily after a prompt of 32
tokens, in float32 and bf16, for one sequence and for several. Both contestants hold the same
weights and take turns; every step is timed, and the figures are of the fastest tenth of each one's
steps: what is left when nothing else uses the machine. The first steps, with the prompt in them and
ours the laying out of weights, do not count. Beside them stands the bound that the measured memory
bandwidth sets: every weight is read once a step. Needs the `bench` extra.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import blocklab as bl
from blocklab.generation import sample_tokens

D_MODEL, N_LAYERS, N_HEADS, N_KV_HEADS, D_FF, VOCABULARY = 576, 30, 9, 3, 1536, 49152
PROMPT, CONTEXT = 32, 2048
BATCHES = (1, 4, 16)
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}

SETTLING = 4

Write = Callable[[Tensor, int, Callable[[], None]], None]
"""Writes so many tokens after a prompt (B, T) and calls back after each."""


def config() -> bl.ModelConfig:
    shape = bl.presets.llama(
        d_model=D_MODEL,
        n_layers=N_LAYERS,
        n_heads=N_HEADS,
        n_kv_heads=N_KV_HEADS,
        vocab_size=VOCABULARY,
        context_length=CONTEXT,
        tie_embeddings=True,
    )
    return shape.with_changes({"block.feed_forward.d_ff": D_FF, "embedding.scale": 1.0})


def ours(model: bl.Transformer) -> Write:
    def write(tokens: Tensor, new: int, written: Callable[[], None]) -> None:
        for _ in sample_tokens(model, tokens, max_new_tokens=new, compiled=True):
            written()

    return write


def transformers_llama(model: bl.Transformer) -> Write:
    """Transformers' Llama with the weights of ours."""
    from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteria

    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=D_MODEL,
        intermediate_size=D_FF,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        num_key_value_heads=N_KV_HEADS,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    theirs: Any = LlamaForCausalLM(shape).to(model.embedding.weight.dtype).eval()
    theirs.load_state_dict(_renamed(model.state_dict()))

    class EachStep(StoppingCriteria):  # type: ignore[misc]
        """Stops nothing: it is what `generate` calls after every step."""

        def __init__(self, written: Callable[[], None]) -> None:
            self.written = written

        def __call__(self, ids: Tensor, scores: object, **_: object) -> Tensor:
            self.written()
            return torch.zeros(len(ids), dtype=torch.bool)

    def write(tokens: Tensor, new: int, written: Callable[[], None]) -> None:
        theirs.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=new,
            do_sample=False,
            stopping_criteria=[EachStep(written)],
        )

    return write


def _renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    head_dim = D_MODEL // N_HEADS
    queries, keys = N_HEADS * head_dim, N_KV_HEADS * head_dim
    named = {
        "model.embed_tokens.weight": weights["embedding.weight"],
        "lm_head.weight": weights["embedding.weight"],
        "model.norm.weight": weights["final_norm.weight"],
    }
    for i in range(N_LAYERS):
        mine, theirs = f"blocks.{i}", f"model.layers.{i}"
        qkv = torch.split(weights[f"{mine}.attention.qkv.weight"], [queries, keys, keys])
        for name, weight in zip("qkv", qkv, strict=True):
            named[f"{theirs}.self_attn.{name}_proj.weight"] = weight
        named[f"{theirs}.self_attn.o_proj.weight"] = weights[f"{mine}.attention.output.weight"]
        gate, up = weights[f"{mine}.feed_forward.expand.weight"].chunk(2)
        named[f"{theirs}.mlp.gate_proj.weight"] = gate
        named[f"{theirs}.mlp.up_proj.weight"] = up
        named[f"{theirs}.mlp.down_proj.weight"] = weights[f"{mine}.feed_forward.contract.weight"]
        named[f"{theirs}.input_layernorm.weight"] = weights[f"{mine}.norm.attention.weight"]
        named[f"{theirs}.post_attention_layernorm.weight"] = weights[
            f"{mine}.norm.feed_forward.weight"
        ]
    return named


def seconds_a_step(write: Write, tokens: Tensor, new: int) -> list[float]:
    """Of every step but the first few, in which prompts are read and weights laid out."""
    times = [time.perf_counter()]
    write(tokens, new, lambda: times.append(time.perf_counter()))
    return [after - before for before, after in pairwise(times)][SETTLING:]


def bandwidth(rounds: int = 10) -> float:
    """Bytes a second that can be read from memory: the best of several ways to read 512 MiB."""
    block = torch.ones(2**27)
    ways: tuple[Callable[[], Tensor], ...] = (
        block.sum,
        block.max,
        lambda: torch.linalg.vector_norm(block),
        lambda: torch.mv(block.view(2**13, 2**14), block[: 2**14]),
    )
    best = float("inf")
    for _ in range(rounds):
        for way in ways:
            began = time.perf_counter()
            way()
            best = min(best, time.perf_counter() - began)
    return block.nbytes / best


def measure(dtype: str, rounds: int, new: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = bl.Transformer(config()).to(DTYPES[dtype]).eval()
    contestants = {"blocklab": ours(model), "transformers": transformers_llama(model)}
    size = sum(p.nbytes for p in model.parameters())
    rows = []
    for batch in BATCHES:
        tokens = torch.randint(VOCABULARY, (batch, PROMPT))
        times: dict[str, list[float]] = {name: [] for name in contestants}
        read = 0.0
        for _ in range(rounds):
            read = max(read, bandwidth(2))
            for name, write in contestants.items():
                times[name] += seconds_a_step(write, tokens, new)
        # A step that nothing else on the machine has slowed down: the fastest tenth.
        best = {name: statistics.quantiles(taken, n=10)[0] for name, taken in times.items()}
        for name, step in best.items():
            rows.append(
                {
                    "contestant": name,
                    "dtype": dtype,
                    "batch": batch,
                    "tokens_per_second": batch / step,
                    "median_tokens_per_second": batch / statistics.median(times[name]),
                    "ratio_to_transformers": best["transformers"] / step,
                    "bandwidth_bytes_per_second": read,
                    "share_of_bandwidth_bound": size / step / read,
                }
            )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'':10s}{'batch':>6s}{'':16s}{'tokens/s':>10s}{'ratio':>8s}{'of the bound':>14s}")
    for row in rows:
        print(
            f"{row['dtype']:10s}{row['batch']:6d}  {row['contestant']:14s}"
            f"{row['tokens_per_second']:10.1f}{row['ratio_to_transformers']:7.2f}×"
            f"{row['share_of_bandwidth_bound']:13.0%}"
        )
    read = max(row["bandwidth_bytes_per_second"] for row in rows)
    print(f"memory is read at {read / 1e9:.1f} GB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--dtype", choices=tuple(DTYPES), action="append")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    rows = [
        row for dtype in asked.dtype or DTYPES for row in measure(dtype, asked.rounds, asked.tokens)
    ]
    show(rows)
    if asked.json:
        about = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": asked.threads,
        }
        asked.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()

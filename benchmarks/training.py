"""How fast is one training step beside other projects' loops, on this machine, in one run?

    python benchmarks/training.py [--rounds 3] [--threads N] [--json FILE]

Every contestant trains a model of the same shape in float32 on the same random tokens: forward,
mean cross-entropy, backward, clipping to 1, AdamW. Each measurement is a process of its own, the
contestants take turns, and the figures are medians over the rounds. Needs the `bench` extra; a
contestant that is not installed is left out, and said.
"""

import argparse
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blocklab.training.memory import peak_memory

D_MODEL, N_LAYERS, N_HEADS, CONTEXT, BATCH = 256, 4, 4, 128, 16
VOCABULARIES = (4096, 50257)
WARM_UP_STEPS = 2
SECONDS = 8.0

Step = Callable[[Tensor, Tensor], float]


def ours(vocab_size: int, preset: str) -> Step:
    import blocklab as bl

    config = bl.presets.preset(preset)(
        d_model=D_MODEL,
        n_layers=N_LAYERS,
        n_heads=N_HEADS,
        vocab_size=vocab_size,
        context_length=CONTEXT,
        dropout=0.0,
        tie_embeddings=True,
    )
    tokens = torch.randint(vocab_size, (40_000,))
    trainer = bl.Trainer(config, corpus=tokens, batch_size=BATCH, learning_rate=1e-3)
    return lambda inputs, targets: trainer.step()


def plain_loop(model: nn.Module, logits_of: Callable[[Tensor], Tensor], vocab_size: int) -> Step:
    """The loop that a script around a model has."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    model.train()

    def step(inputs: Tensor, targets: Tensor) -> float:
        logits = logits_of(inputs)
        loss = F.cross_entropy(logits.view(-1, vocab_size), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def transformers_gpt2(vocab_size: int) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=CONTEXT,
        n_embd=D_MODEL,
        n_layer=N_LAYERS,
        n_head=N_HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    return plain_loop(model, lambda x: model(x, use_cache=False).logits, vocab_size)


def transformers_llama(vocab_size: int) -> Step:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=D_MODEL,
        intermediate_size=640,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    return plain_loop(model, lambda x: model(x, use_cache=False).logits, vocab_size)


def x_transformers(vocab_size: int) -> Step:
    from x_transformers import Decoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=vocab_size,
        max_seq_len=CONTEXT,
        tie_embedding=True,
        attn_layers=Decoder(
            dim=D_MODEL,
            depth=N_LAYERS,
            heads=N_HEADS,
            attn_dim_head=D_MODEL // N_HEADS,
            attn_flash=True,
            rotary_pos_emb=True,
        ),
    )
    return plain_loop(model, model, vocab_size)


def litgpt(vocab_size: int) -> Step:
    from litgpt import GPT, Config

    config = Config(
        name="bench",
        block_size=CONTEXT,
        vocab_size=vocab_size,
        padded_vocab_size=vocab_size,
        n_layer=N_LAYERS,
        n_head=N_HEADS,
        n_embd=D_MODEL,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=640,
    )
    model = GPT(config)
    model.lm_head.weight = model.transformer.wte.weight
    return plain_loop(model, model, vocab_size)


CONTESTANTS: dict[str, tuple[str, Callable[[int], Step]]] = {
    "blocklab gpt2": ("blocklab", lambda v: ours(v, "gpt2")),
    "blocklab modern": ("blocklab", lambda v: ours(v, "modern")),
    "transformers GPT-2": ("transformers", transformers_gpt2),
    "transformers Llama": ("transformers", transformers_llama),
    "x-transformers": ("x_transformers", x_transformers),
    "litgpt": ("litgpt", litgpt),
}


def measure(name: str, vocab_size: int, threads: int) -> dict[str, float]:
    """Tokens a second and peak memory of one contestant, in this process."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    step = CONTESTANTS[name][1](vocab_size)
    inputs = torch.randint(vocab_size, (BATCH, CONTEXT))
    targets = torch.randint(vocab_size, (BATCH, CONTEXT))
    for _ in range(WARM_UP_STEPS):
        step(inputs, targets)
    times: list[float] = []
    while sum(times) < SECONDS or len(times) < 3:
        began = time.perf_counter()
        step(inputs, targets)
        times.append(time.perf_counter() - began)
    return {
        "tokens_per_second": BATCH * CONTEXT / statistics.median(times),
        "peak_memory": peak_memory(),
    }


def in_a_process(name: str, vocab_size: int, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name, str(vocab_size), "--threads", str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "VOCABULARY"))
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one[0], int(asked.one[1]), asked.threads)))
        return
    there = [n for n, (package, _) in CONTESTANTS.items() if importlib.util.find_spec(package)]
    for name in CONTESTANTS.keys() - set(there):
        print(f"left out, not installed: {name}")
    rows = []
    for vocab_size in VOCABULARIES:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in there}
        for _ in range(asked.rounds):
            for name in there:
                found[name].append(in_a_process(name, vocab_size, asked.threads))
        rows += table(vocab_size, found)
    if asked.json:
        about = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": asked.threads,
        }
        asked.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1))


def table(vocab_size: int, found: dict[str, list[dict[str, float]]]) -> list[dict[str, object]]:
    """Print and return the medians at one vocabulary, with ratios to the fastest peer."""
    rows: list[dict[str, object]] = []
    speeds = {n: statistics.median(m["tokens_per_second"] for m in ms) for n, ms in found.items()}
    peers = [speed for name, speed in speeds.items() if not name.startswith("blocklab")]
    fastest = max(peers, default=float("nan"))
    print(f"\nvocabulary {vocab_size:,}; {N_LAYERS} × {D_MODEL}, batch {BATCH} × {CONTEXT}")
    print(f"{'':22s}{'tokens/s':>10s}{'of the fastest peer':>22s}{'peak memory':>14s}")
    for name, speed in sorted(speeds.items(), key=lambda item: -item[1]):
        memory = statistics.median(m["peak_memory"] for m in found[name])
        print(f"{name:22s}{speed:10,.0f}{speed / fastest:21.2f}×{memory / 2**20:10,.0f} MiB")
        rows.append(
            {
                "contestant": name,
                "vocab_size": vocab_size,
                "tokens_per_second": speed,
                "ratio_to_fastest_peer": speed / fastest,
                "peak_memory": memory,
            }
        )
    return rows


if __name__ == "__main__":
    main()

"""How fast is one training step beside other projects' loops, on this machine, in one run?

    python benchmarks/training.py [--rounds 12] [--threads N] [--vocabulary V] [--json FILE]

Every contestant trains a model of the same shape on the same random tokens: forward, mean
cross-entropy, backward, clipping to 1, AdamW; in float32, with bfloat16 products, and with these
compiled. Each is a process of its own that stays alive; they take turns, a few steps each, so that
a machine whose speed drifts drifts for all, and the figures are medians of all steps. Needs the
`bench` extra; a contestant that is not installed is left out, and said, and so is a mode that
fails.
"""

import argparse
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import tempfile
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
STEPS_A_TURN = 3

Step = Callable[[Tensor, Tensor], float]

FLOAT32, BF16, COMPILED = MODES = ("float32", "bf16", "bf16 compiled")


def ours(vocab_size: int, preset: str, mode: str) -> Step:
    import blocklab as bl
    from blocklab.training.numerics import Numerics

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
    numerics = Numerics(
        dtype="float32" if mode == FLOAT32 else "bfloat16",
        compile=mode == COMPILED,
        threads=torch.get_num_threads(),
    )
    trainer = bl.Trainer(
        config, corpus=tokens, batch_size=BATCH, learning_rate=1e-3, numerics=numerics
    )
    return lambda inputs, targets: trainer.step()


def plain_loop(
    model: nn.Module, logits_of: Callable[[Tensor], Tensor], vocab_size: int, mode: str
) -> Step:
    """The loop that a script around a model has."""

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=mode != FLOAT32):
            logits = logits_of(inputs)
            return F.cross_entropy(logits.view(-1, vocab_size), targets.flatten())

    if mode == COMPILED:
        loss_of = torch.compile(loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    model.train()

    def step(inputs: Tensor, targets: Tensor) -> float:
        loss = loss_of(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def transformers_gpt2(vocab_size: int, mode: str) -> Step:
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
    return plain_loop(model, lambda x: model(x, use_cache=False).logits, vocab_size, mode)


def transformers_llama(vocab_size: int, mode: str) -> Step:
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
    return plain_loop(model, lambda x: model(x, use_cache=False).logits, vocab_size, mode)


def x_transformers(vocab_size: int, mode: str) -> Step:
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
    return plain_loop(model, model, vocab_size, mode)


def litgpt(vocab_size: int, mode: str) -> Step:
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
    return plain_loop(model, model, vocab_size, mode)


CONTESTANTS: dict[str, tuple[str, Callable[[int, str], Step]]] = {
    "blocklab gpt2": ("blocklab", lambda v, mode: ours(v, "gpt2", mode)),
    "blocklab modern": ("blocklab", lambda v, mode: ours(v, "modern", mode)),
    "transformers GPT-2": ("transformers", transformers_gpt2),
    "transformers Llama": ("transformers", transformers_llama),
    "x-transformers": ("x_transformers", x_transformers),
    "litgpt": ("litgpt", litgpt),
}


def serve(name: str, mode: str, vocab_size: int, threads: int) -> None:
    """One contestant, in this process: a turn of steps for every line that comes in."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    step = CONTESTANTS[name][1](vocab_size, mode)
    inputs = torch.randint(vocab_size, (BATCH, CONTEXT))
    targets = torch.randint(vocab_size, (BATCH, CONTEXT))
    for _ in range(WARM_UP_STEPS):
        step(inputs, targets)
    print("ready", flush=True)
    for _ in sys.stdin:
        step(inputs, targets)  # others have used the caches meanwhile
        times = []
        for _ in range(STEPS_A_TURN):
            began = time.perf_counter()
            step(inputs, targets)
            times.append(time.perf_counter() - began)
        print(json.dumps({"times": times, "peak_memory": peak_memory()}), flush=True)


class Contestant:
    """A process that serves one contestant in one mode."""

    def __init__(self, name: str, mode: str, vocab_size: int, threads: int) -> None:
        command = [sys.executable, __file__, "--one", name, mode, str(vocab_size)]
        self.complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
        )
        self.times: list[float] = []
        self.peak_memory = 0.0

    def ready(self) -> bool:
        """Whether it got through its first steps, compilation included."""
        assert self.process.stdout is not None
        return any(line == "ready\n" for line in self.process.stdout)

    def take_turn(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        told = json.loads(self.process.stdout.readline())
        self.times += told["times"]
        self.peak_memory = told["peak_memory"]

    def leave(self) -> str:
        """The last line of what it complained about."""
        self.process.communicate()
        self.complaints.seek(0)
        return (self.complaints.read().strip().splitlines() or [""])[-1]

    @property
    def tokens_per_second(self) -> float:
        return BATCH * CONTEXT / statistics.median(self.times)


def peak_of_products(threads: int) -> float:
    """The fastest bfloat16 matrix product that this machine shows, FLOP/s."""
    torch.set_num_threads(threads)
    a, b = (torch.randn(2048, 2048).bfloat16() for _ in range(2))
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        torch.mm(a, b.t())
        best = min(best, time.perf_counter() - began)
    return float(2 * 2048**3 / best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, action="append")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=3, metavar=("NAME", "MODE", "VOCABULARY"))
    asked = parser.parse_args()
    if asked.one:
        name, mode, vocab_size = asked.one
        serve(name, mode, int(vocab_size), asked.threads)
        return
    there = [n for n, (package, _) in CONTESTANTS.items() if importlib.util.find_spec(package)]
    for name in CONTESTANTS.keys() - set(there):
        print(f"left out, not installed: {name}")
    entries = [(name, mode) for name in there for mode in MODES]
    rows = []
    peak = peak_of_products(asked.threads)
    print(f"bfloat16 products: at most {peak / 1e9:.0f} GFLOP/s on {asked.threads} threads")
    for vocab_size in asked.vocabulary or VOCABULARIES:
        racing = {}
        for entry in entries:
            contestant = Contestant(*entry, vocab_size, asked.threads)
            if contestant.ready():
                racing[entry] = contestant
            else:
                print(f"failed: {entry[0]}, {entry[1]}: {contestant.leave()}")
        for _ in range(asked.rounds):
            for contestant in racing.values():
                contestant.take_turn()
        for contestant in racing.values():
            contestant.leave()
        rows += table(vocab_size, racing, peak)
    if asked.json:
        about = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": asked.threads,
            "peak_of_bf16_products": peak,
        }
        asked.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1))


Entry = tuple[str, str]


def table(vocab_size: int, racing: dict[Entry, Contestant], peak: float) -> list[dict[str, object]]:
    """Print and return the medians at one vocabulary, with ratios to the fastest peer."""
    rows: list[dict[str, object]] = []
    speeds = {entry: contestant.tokens_per_second for entry, contestant in racing.items()}
    peers = {entry: speed for entry, speed in speeds.items() if not entry[0].startswith("blocklab")}
    eager = max((s for (_, mode), s in peers.items() if mode == FLOAT32), default=float("nan"))
    best = max(peers.values(), default=float("nan"))
    flops = _flops_a_token(vocab_size)
    print(f"\nvocabulary {vocab_size:,}; {N_LAYERS} × {D_MODEL}, batch {BATCH} × {CONTEXT}")
    print(
        f"{'':36s}{'tokens/s':>9s}{'÷ eager':>9s}{'÷ best':>8s}{'peak memory':>14s}{'of peak':>9s}"
    )
    for (name, mode), speed in sorted(speeds.items(), key=lambda item: -item[1]):
        memory = racing[name, mode].peak_memory
        share = flops * speed / peak if name.startswith("blocklab") else float("nan")
        print(
            f"{name + ', ' + mode:36s}{speed:9,.0f}{speed / eager:8.2f}×{speed / best:7.2f}×"
            f"{memory / 2**20:10,.0f} MiB" + (f"{share:9.0%}" if share == share else "")
        )
        rows.append(
            {
                "contestant": name,
                "mode": mode,
                "vocab_size": vocab_size,
                "tokens_per_second": speed,
                "ratio_to_fastest_float32_peer": speed / eager,
                "ratio_to_best_peer": speed / best,
                "peak_memory": memory,
            }
        )
    return rows


def _flops_a_token(vocab_size: int) -> int:
    """Of a training step of the modern model, whose feed-forward is as wide as the peers'."""
    import blocklab as bl

    config = bl.presets.modern(
        d_model=D_MODEL,
        n_layers=N_LAYERS,
        n_heads=N_HEADS,
        vocab_size=vocab_size,
        context_length=CONTEXT,
        tie_embeddings=True,
    )
    return bl.count(config).flops_per_token(CONTEXT)


if __name__ == "__main__":
    main()

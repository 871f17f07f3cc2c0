"""Runs of our own, as models to write with, judge or export."""

from pathlib import Path

import torch

from blocklab.exchange.loaded import Loaded
from blocklab.training.trained import load_trained


def load_run(folder: Path, dtype: torch.dtype | None) -> Loaded:
    """The model of a finished run. Raises BlocklabError for one that is not finished or damaged."""
    run = load_trained(folder)
    model = run.model if dtype is None else run.model.to(dtype)
    tokenizer = run.tokenizer
    source = f"{folder} (run)"
    if tokenizer is None:
        name = run.spec.data.tokenizer
        note = f"the tokenizer '{name}' was learnt from a corpus that is not here now"
        return Loaded(model, None, source, notes=(note,))
    stops = () if tokenizer.end_of_text is None else (tokenizer.end_of_text,)
    return Loaded(model, tokenizer, source, stop_ids=stops)

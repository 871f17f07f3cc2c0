"""Runs of our own, as models to write with, judge or export."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from blocklab.data.tokenizer import Tokenizer
from blocklab.exchange.conventions import (
    TextConventions,
    came_with,
    conventions_by_ids,
    within_rows,
)
from blocklab.exchange.json_file import read_json_object
from blocklab.exchange.loaded import Loaded
from blocklab.files import write_atomically
from blocklab.record import Record
from blocklab.training.trained import load_trained

TEXT = "text.json"

_Ids = tuple[Annotated[int, Field(ge=0, strict=True)], ...]


class _OfItsStart(Record):
    """What a run keeps of the texts of the model that it began from."""

    start_ids: _Ids
    stop_ids: _Ids
    end_of_text: Annotated[int, Field(ge=0, strict=True)] | None
    conventions: TextConventions | None


def keep_conventions(
    folder: Path, start_ids: Sequence[int], stop_ids: Sequence[int], tokenizer: Tokenizer
) -> None:
    """Keep in a run's folder what the model it begins from came with about texts.

    `start_ids` and `stop_ids` are that model's, and so is `tokenizer`, by which the run goes on: a
    run that reads by another one has nothing to keep. Raises RunFailed when the disk refuses.
    """
    kept = _OfItsStart(
        start_ids=tuple(start_ids),
        stop_ids=tuple(stop_ids),
        end_of_text=tokenizer.end_of_text,
        conventions=came_with(tokenizer),
    )
    write_atomically(folder / TEXT, (json.dumps(kept.plain(), indent=2) + "\n").encode())


def load_run(folder: Path, dtype: torch.dtype | None) -> Loaded:
    """The model of a finished run. Raises BlocklabError for one that is not finished or damaged."""
    run = load_trained(folder)
    model = run.model if dtype is None else run.model.to(dtype)
    tokenizer, kept = run.tokenizer, _kept(folder)
    notes: list[str] = []
    if tokenizer is None:
        name = run.spec.data.tokenizer
        notes.append(f"the tokenizer '{name}' was learnt from a corpus that is not here now")
    elif kept is not None:
        # The file of a tokenizer alone does not say which of its tokens ends a text.
        tokenizer.end_of_text = kept.end_of_text
    end = None if tokenizer is None else tokenizer.end_of_text
    ends = () if end is None else (end,)
    if kept is None:
        return Loaded(model, tokenizer, f"{folder} (run)", stop_ids=ends, notes=tuple(notes))
    rows = model.config.rows
    start_ids = within_rows("start id", kept.start_ids, rows, notes)
    # A run has seen its texts end in this one, whatever its model ended them with before.
    stop_ids = within_rows("stop id", tuple(dict.fromkeys((*kept.stop_ids, *ends))), rows, notes)
    conventions = kept.conventions
    if conventions is None:
        conventions = conventions_by_ids(next(iter(start_ids), end), stop_ids)
    conventions = conventions.stopping_at(stop_ids).within(rows, notes)
    return Loaded(
        model, tokenizer, f"{folder} (run)", start_ids, stop_ids, tuple(notes), conventions
    )


def _kept(folder: Path) -> _OfItsStart | None:
    """What the run's folder keeps; None for a run that began from drawn weights."""
    path = folder / TEXT
    return _OfItsStart.parse(read_json_object(path), str(path)) if path.exists() else None

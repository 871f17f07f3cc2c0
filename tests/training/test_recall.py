"""Recall counts the answers that are given, and nothing else."""

import itertools
import json

import numpy as np
import pytest
import torch
from torch import nn

import blocklab as bl
from blocklab.data.dataset import DataConfig
from blocklab.data.synthetic import SYNTHETIC
from blocklab.data.windows import ValidationWindows
from blocklab.study.runner import prepare_study
from blocklab.training.recall import answers_of, recall, require_answers
from tests.study.test_study import minimal

LANGUAGE = SYNTHETIC["recall"]


def tokens(n_documents=3):
    documents = itertools.islice(LANGUAGE.documents(), n_documents)
    text = "\0".join(text for _, text in documents)
    return np.frombuffer(text.encode(), np.uint8)


class Oracle(nn.Module):
    """Knows the text, and gets a share of the places wrong."""

    def __init__(self, text, wrong_at=()):
        super().__init__()
        self.text, self.wrong_at = text, set(wrong_at)
        self.read = 0

    def forward(self, inputs):
        logits = torch.zeros(*inputs.shape, 256)
        for row in range(inputs.shape[0]):
            for place in range(inputs.shape[1]):
                target = self.read + 1
                if target < len(self.text):
                    right = int(self.text[target])
                    logits[row, place, (right + (target in self.wrong_at)) % 256] = 1.0
                self.read += 1
        return logits


def test_an_oracle_recalls_everything_and_one_that_errs_elsewhere_too():
    text = tokens()
    windows = ValidationWindows(text, 100)
    answers = answers_of(DataConfig(corpus="synthetic:recall", tokenizer="bytes"))
    assert recall(Oracle(text), windows, answers, 4) == 1.0
    letters = [i for i, byte in enumerate(text) if chr(byte).isalpha()]
    assert recall(Oracle(text, letters), windows, answers, 4) == 1.0


def test_the_share_is_of_the_answers_of_lines_that_begin_inside_a_window():
    text = tokens()
    n = len(text) - 1
    windows = ValidationWindows(text, n)
    asked = np.flatnonzero(LANGUAGE.answers(text[None])[0])
    assert recall(Oracle(text, asked[::2]), windows, LANGUAGE.answers, 1) == pytest.approx(
        1 - len(asked[::2]) / len(asked)
    )


def test_the_short_last_window_counts_no_padding():
    text = tokens()[:250]
    windows = ValidationWindows(text, 100)
    assert recall(Oracle(text), windows, LANGUAGE.answers, 8) == 1.0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"corpus": "python-docs", "tokenizer": "bytes"}, "synthetic:recall"),
        ({"corpus": "synthetic:grammar", "tokenizer": "bytes"}, "synthetic:modular"),
        ({"corpus": "synthetic:recall", "tokenizer": "bpe:300"}, "give bytes"),
    ],
)
def test_a_corpus_without_answers_is_refused_before_training(data, words):
    with pytest.raises(bl.BlocklabError, match=words):
        minimal(metrics=["recall"], data=data)


def test_windows_without_an_answer_are_refused():
    text = tokens()
    require_answers(ValidationWindows(text, 100), LANGUAGE.answers)
    with pytest.raises(bl.BlocklabError, match="context_length 16"):
        require_answers(ValidationWindows(text, 16), LANGUAGE.answers)


def test_a_context_too_short_for_an_answer_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path / "cache"))
    study = minimal(
        metrics=["recall"], data={"corpus": "synthetic:recall", "tokenizer": "bytes"}
    ).with_settings({"context_length": 16})
    with pytest.raises(bl.BlocklabError, match="context_length 16"):
        prepare_study(study)


@pytest.mark.slow
def test_a_study_reports_recall_beside_the_loss(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKLAB_CACHE", str(tmp_path / "cache"))
    study = minimal(
        metrics=["recall"],
        seeds=1,
        data={"corpus": "synthetic:recall", "tokenizer": "bytes"},
        training={"steps": 5, "batch_size": 2, "learning_rates": [1e-2], "validation_tokens": 4000},
    )
    result = bl.run_study(study, tmp_path / "out", workers=1)
    assert all(0 <= run.recall <= 1 for run in result.runs)
    stored = json.loads(next((tmp_path / "out").glob("runs/*/run.json")).read_text())
    assert 0 <= stored["outcome"]["recall"] <= 1
    assert "Recall" in result.report.read_text(encoding="utf-8")

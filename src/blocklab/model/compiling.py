"""Compiled code for as many models as a process meets."""

from contextlib import AbstractContextManager

import torch

MOST = 256
"""Kinds of models, dtypes and threads that one function is compiled for."""


def for_every_model() -> AbstractContextManager[object]:
    """Inside, compiled functions go on compiling where PyTorch would stop at the eighth kind.

    All models share one function's code, and from its limit on the rest would silently not be
    compiled: what a process did before would decide how a model is computed.
    """
    patch: AbstractContextManager[object] = torch._dynamo.config.patch(recompile_limit=MOST)
    return patch

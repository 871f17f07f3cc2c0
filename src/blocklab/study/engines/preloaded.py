"""What every worker needs, imported once by the process that workers are copies of."""

import time

import torch._dynamo  # noqa: F401 -- an optimiser imports it when it is made

import blocklab.study.plugins
import blocklab.training.run  # noqa: F401

SECONDS = time.process_time()
"""Processor seconds until here, of the process that imported this first."""

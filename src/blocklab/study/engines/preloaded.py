"""What every worker needs, imported once by the process that workers are copies of."""

import os
import time

import torch._dynamo  # noqa: F401 -- an optimiser imports it when it is made

import blocklab.study.plugins
import blocklab.training.run  # noqa: F401

PROCESS = os.getpid()
"""Who imported this first, and has not been copied from another."""

SECONDS = time.process_time()
"""Its processor seconds until here."""

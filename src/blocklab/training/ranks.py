"""One model trained by several processes, where it is too large for one device.

Each holds a part of every parameter (FSDP2) and takes a share of every batch; what is said of a
step is said of all shares together, and rank 0 keeps the run's folder. Starting the processes,
watching them and starting them again is torchrun's.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from blocklab.errors import BlocklabError, RunFailed
from blocklab.model.transformer import Transformer
from blocklab.torchrun import started_by_torchrun
from blocklab.training.config import TrainingConfig
from blocklab.training.devices import PROCESSOR, available_devices

T = TypeVar("T")


class Alone:
    """The only process there is. What several do together, it has done already."""

    rank = 0
    size = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    def place(self, model: Transformer, device: torch.device) -> None:
        """Put a model there that was built on the processor."""
        model.to(device)

    def let_go(self, model: Transformer) -> None:
        """Of the parameters that were gathered to be evaluated with."""

    def share(self, batch: Tensor) -> Tensor:
        """The sequences of a batch (B, T) that this process trains on."""
        return batch

    def turns(self, n: int) -> Iterator[tuple[int, bool]]:
        """Which of `n` passes through the model this process makes, as many as every other one.

        False says that it only keeps the others company: what comes out is not its own to count.
        """
        return ((i, True) for i in range(n))

    def sums(self, *values: float) -> tuple[float, ...]:
        """Of what every process has."""
        return values

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Whether any process says so."""
        return flags

    def added(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor that every process has, on the processor."""
        return tensor

    def told(self, say: Callable[[], T]) -> T:
        """What rank 0 finds: only there `say` is called. What it raises is raised everywhere."""
        return say()

    def tensors(self, names: Sequence[str], of: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Tensors that rank 0 has, to be asked for once each and by all in the same order."""
        return of


ALONE = Alone()


class Spread(Alone):
    """One of several processes, which have all been started."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        self.rank, self.size = rank, size
        self._mesh = init_device_mesh(device.type, (size,))

    def place(self, model: Transformer, device: torch.device) -> None:
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        # One at a time: a device never holds the whole model.
        for module in (*model.blocks, model):
            # FSDP2 makes them a class of its own; it moves what belongs to no other.
            divided = fully_shard(module, mesh=self._mesh)
            # Losses are divided by the targets of all shares already.
            divided.set_gradient_divide_factor(1.0)
            divided.set_force_sum_reduction_for_comms(True)
        register_fsdp_forward_method(model, "features")

    def let_go(self, model: Transformer) -> None:
        model.reshard()  # type: ignore[operator]

    def share(self, batch: Tensor) -> Tensor:
        return batch.tensor_split(self.size)[self.rank]

    def turns(self, n: int) -> Iterator[tuple[int, bool]]:
        for first in range(0, n, self.size):
            own = first + self.rank
            yield (own, True) if own < n else (first, False)

    def sums(self, *values: float) -> tuple[float, ...]:
        return tuple(self.added(torch.tensor(values, dtype=torch.float64)).tolist())

    def any(self, *flags: bool) -> tuple[bool, ...]:
        return tuple(found > 0 for found in self.sums(*map(float, flags)))

    def added(self, tensor: Tensor) -> Tensor:
        torch.distributed.all_reduce(tensor)
        return tensor

    def told(self, say: Callable[[], T]) -> T:
        answer: list[Any] = [None, None]
        if self.leads:
            try:
                answer[0] = say()
            except BlocklabError as error:
                answer[1] = error
        torch.distributed.broadcast_object_list(answer)
        found, failure = answer
        if failure is not None:
            raise failure
        return found  # type: ignore[no-any-return]

    def tensors(self, names: Sequence[str], of: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        about = {name: (of[name].shape, of[name].dtype) for name in names} if self.leads else {}
        return _Told(self.told(lambda: about), of if self.leads else None)


class _Told(Mapping[str, Tensor]):
    """One tensor is sent when it is asked for, so that no process but the first holds all."""

    def __init__(
        self,
        about: Mapping[str, tuple[torch.Size, torch.dtype]],
        known: Mapping[str, Tensor] | None,
    ) -> None:
        self._about, self._known = about, known

    def __iter__(self) -> Iterator[str]:
        return iter(self._about)

    def __len__(self) -> int:
        return len(self._about)

    def __getitem__(self, name: str) -> Tensor:
        shape, dtype = self._about[name]
        tensor = torch.empty(shape, dtype=dtype) if self._known is None else self._known[name]
        torch.distributed.broadcast(tensor, 0)
        return tensor


def require_shares(training: TrainingConfig, ranks: Alone) -> None:
    """Raise BlocklabError unless every process has a sequence of every micro-batch."""
    portions = training.accumulation * ranks.size
    if ranks.size > 1 and portions > training.batch_size:
        raise BlocklabError(
            f"training.batch_size: {training.batch_size} sequences are too few for {ranks.size} "
            f"processes of {training.accumulation} micro-batches each; give {portions} or more"
        )


@contextmanager
def joined(device: str | None) -> Iterator[tuple[Alone, str | None]]:
    """This process among those that torchrun has started, and the device that it takes.

    `device` is the name of its kind, or null for an accelerator where there is one. A script that
    used it ends by `torchrun.leave`. A process that
    nobody started beside others is alone, and its device is as it was asked for. Raises
    BlocklabError where a machine has fewer accelerators than processes, RunFailed when another of
    them is lost.
    """
    if not started_by_torchrun():
        yield ALONE, device
        return
    kind = _kind(device)
    local, beside = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if kind != PROCESSOR:
        there = torch.accelerator.device_count()
        if beside > there:
            raise BlocklabError(
                f"torchrun started {beside} processes on a machine with {there} devices; give "
                f"--nproc-per-node {there}"
            )
        torch.accelerator.set_device_index(local)
    backend = "gloo" if kind == PROCESSOR else "cpu:gloo,cuda:nccl"
    torch.distributed.init_process_group(backend)
    try:
        yield (
            Spread(
                torch.distributed.get_rank(),
                torch.distributed.get_world_size(),
                torch.device(kind),
            ),
            kind,
        )
    except RuntimeError as error:
        if not _lost_another(error):
            raise
        raise RunFailed(
            "another of the processes ended, and said why if it could; the same command with "
            "--resume goes on from the last checkpoint"
        ) from error
    finally:
        torch.distributed.destroy_process_group()


def _lost_another(error: RuntimeError) -> bool:
    """Gloo has no error of its own for it, NCCL has."""
    return isinstance(error, torch.distributed.DistBackendError) or "gloo" in str(error)


def _kind(device: str | None) -> str:
    there = available_devices()
    kind = there[-1] if device is None else device
    if ":" in kind:
        raise BlocklabError(
            f"--device {kind}: each process takes its own; give {kind.partition(':')[0]}"
        )
    if kind not in there:
        raise BlocklabError(f"device '{kind}': not there; this machine has {', '.join(there)}")
    if kind not in (PROCESSOR, "cuda"):
        raise BlocklabError(f"--device {kind}: a model is spread over processors or CUDA devices")
    return kind

"""One run on a machine that shares no disk with the one that asked for it.

What the run needs travels with it: its record, the files that define parts of the user's own, the
token files (once a machine) and whatever it had saved before. What it saves on its way travels
back, so that the folder it was asked for in is as good as if the run were trained there. Knows
nothing of how things travel.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from blocklab.data.cache import writable_cache
from blocklab.data.dataset import Dataset
from blocklab.errors import BlocklabError, RunFailed
from blocklab.files import LOCK, discard, locked, new_folder, write_atomically
from blocklab.study.cost import spent
from blocklab.study.engines.engine import Job, Pace
from blocklab.study.plugins import (
    copies_in,
    load_plugins,
    require_unchanged,
    sources_of,
    write_copies,
)
from blocklab.training.checkpoint import DAMAGED, METRICS, NEWEST, PREVIOUS, remove_checkpoints
from blocklab.training.run import RunSpec, Stopped, train_run
from blocklab.training.run_folder import RECORD

Files = Mapping[str, bytes]
"""The files of a folder by name."""

LAST = (METRICS, NEWEST, RECORD)
"""Written after all else and in this order: a checkpoint may be older than the metrics, which are
cut to it, and a folder with run.json is finished.
"""


@dataclass(frozen=True)
class Luggage:
    """What travels to a run. `text` is the name of a prepared text, whose files travel apart."""

    spec: str
    plugins: Files
    text: str
    saved: Files
    checkpoint_seconds: float


@dataclass(frozen=True)
class Return:
    """What comes back: the run's folder, the processor's seconds, what was wrong with the input."""

    files: Files
    seconds: float
    refused: str | None = None


Report = Callable[[int, float], bool]
"""Is told steps done and the loss; says whether to save and stop."""


def packed(job: Job) -> Luggage:
    """A job as it travels, with what its folder here holds of the run."""
    return Luggage(
        spec=job.spec,
        plugins=sources_of(job.plugins),
        text=job.dataset.name,
        saved=files_of(job.folder),
        checkpoint_seconds=job.checkpoint_seconds,
    )


def files_of(folder: Path) -> Files:
    """What a folder holds; nothing where there is none. What is half written does not travel, nor
    does a checkpoint that there is a newer one of.
    """
    if not folder.is_dir():
        return {}
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith(".") and path.name not in (PREVIOUS, DAMAGED)
    }


def unpack(files: Files, folder: Path) -> None:
    """Write what came back, so that a kill in the middle leaves what can be gone on from.

    Raises RunFailed when the disk refuses.
    """
    for name in (*(files.keys() - {*LAST}), *(name for name in LAST if name in files)):
        write_atomically(folder / name, files[name])
    if RECORD in files:
        remove_checkpoints(folder)


def travelled_text(fingerprint: str, files: Callable[[], Files]) -> Dataset:
    """The prepared text of that fingerprint, made from `files` where this machine has none.

    One process of a machine makes it, the others wait.
    """
    root, _ = writable_cache(None)
    folder = root / "datasets" / fingerprint
    with locked(root / "datasets" / f".{fingerprint}.lock"):
        with contextlib.suppress(BlocklabError):
            return Dataset.open(folder)
        if folder.is_dir():
            discard(folder)
        with new_folder(folder) as place:
            for name, content in files().items():
                (place / name).write_bytes(content)
        return Dataset.open(folder)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that goes when this ends; those that killed processes left go when this begins."""
    place = writable_cache(None)[0] / "away"
    with contextlib.ExitStack() as held:
        with locked(place / LOCK):
            for left in place.iterdir():
                with contextlib.suppress(OSError), locked(left / LOCK, make=False, wait=False):
                    shutil.rmtree(left)
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(dir=place)))
            held.enter_context(locked(folder / LOCK))
        yield folder


def train_away(
    luggage: Luggage,
    text: Callable[[], Files],
    report: Report,
    keep: Callable[[Files], object],
) -> Return:
    """Train here what has travelled here, in a folder of no other use.

    `report` hears of progress at most a few times a second, `keep` of the folder after every
    checkpoint. Bad input comes back as such; everything else that goes wrong is raised.
    """
    began = spent()
    with scratch_folder() as scratch:
        folder, refused = scratch / "run", None
        try:
            _train(luggage, folder, text, partial(_Letters, folder, report, keep))
        except RunFailed:
            raise
        except BlocklabError as error:
            refused = str(error)
        return Return(files_of(folder), spent() - began, refused)


class _Letters:
    """What a run says on its way, and is answered."""

    def __init__(self, folder: Path, report: Report, keep: Callable[[Files], object]) -> None:
        self._folder, self._report, self._keep = folder, report, keep
        self._pace = Pace()
        self._kept = self._saved_at()
        self._stop = False

    def on_step(self, step: int, total: int, loss: float) -> None:
        if not self._pace.is_due(step, total):
            return
        self._stop = self._report(step, loss)
        if self._saved_at() != self._kept:
            self._kept = self._saved_at()
            self._keep(files_of(self._folder))

    def should_stop(self) -> bool:
        return self._stop

    def _saved_at(self) -> int | None:
        newest = self._folder / NEWEST
        return newest.stat().st_mtime_ns if newest.exists() else None


def _train(
    luggage: Luggage,
    folder: Path,
    text: Callable[[], Files],
    correspondence: Callable[[], _Letters],
) -> None:
    import torch

    plugins = folder.with_name("plugins")
    write_copies(luggage.plugins, plugins)
    loaded = load_plugins(copies_in(plugins))  # the record may be of their parts
    spec = RunSpec.model_validate_json(luggage.spec)
    require_unchanged(spec.plugins, loaded)
    here = ".".join(torch.__version__.split(".")[:2])
    if here != spec.torch:
        raise BlocklabError(
            f"a machine has torch {here} and the study is of {spec.torch}: install the same torch "
            "everywhere, or its losses could not be compared"
        )
    torch.set_num_threads(spec.numerics.threads)
    unpack(luggage.saved, folder)
    letters = correspondence()
    with contextlib.suppress(Stopped):
        train_run(
            spec,
            folder,
            travelled_text(luggage.text, text),
            on_step=letters.on_step,
            should_stop=letters.should_stop,
            checkpoint_seconds=luggage.checkpoint_seconds,
        )

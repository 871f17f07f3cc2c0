"""The question of a study, as its YAML file states it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from blocklab.data.dataset import DataConfig
from blocklab.errors import BlocklabError, nearest
from blocklab.model.config import ModelConfig, Probability
from blocklab.model.presets import preset
from blocklab.record import Record, with_changes
from blocklab.training.config import Recipe, TrainingConfig
from blocklab.training.numerics import Numerics
from blocklab.training.recall import answers_of
from blocklab.yaml_file import read_yaml, write_yaml

PLACEBO = "placebo"

TWO_LOOKS = (5, 10)
"""Seeds at each look of `seeds: two-look`."""

Changes = dict[str, Any]
"""Paths and values. Those that begin with `training.` address that record, others the model."""

_ONE_TEXT = "losses of other texts cannot be averaged; ask in a study of its own"
_ONLY_LOOKS = "it changes nothing in training; set it under training"
NO_NUISANCES = {
    "data": _ONE_TEXT,
    "training.validation_tokens": _ONE_TEXT,
    "training.learning_rates": "every arm is read at its own best rate in every setting anyway; "
    "give all rates under training",
    "training.evaluate_every": _ONLY_LOOKS,
    "training.inspect_every": _ONLY_LOOKS,
}
"""Paths that are no nuisance, why, and what to do."""

OPTIONS = {
    "seeds": "use --seeds N",
    "budget": "use --budget NAME",
    "variants": "use --variant NAME:PATH=VALUE",
    "baseline": "leave 'baseline.' out of the path",
}
"""How the command line says what `--set` cannot."""


class Baseline(Record):
    """The model that every variant is compared with: a preset, a YAML file, or a whole config."""

    name: str = "baseline"
    preset: str | None = None
    file: str | None = None
    """A model's YAML file, relative to where the command runs."""
    model: ModelConfig | None = None
    d_model: int | None = Field(None, gt=0)
    n_layers: int | None = Field(None, gt=0)
    n_heads: int | None = Field(None, gt=0)
    n_kv_heads: int | None = Field(None, gt=0)
    vocab_size: int | None = Field(None, gt=0)
    context_length: int | None = Field(None, gt=0)
    dropout: Probability | None = None
    tie_embeddings: bool | None = None
    set: Changes = Field(default_factory=dict)
    """Further changes, by path."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if sum(source is not None for source in (self.preset, self.file, self.model)) != 1:
            raise BlocklabError("give one of baseline.preset, baseline.file and baseline.model")
        return self

    def config(self) -> ModelConfig:
        """The whole model. Raises BlocklabError for an unknown preset, file or path."""
        if self.preset is not None:
            return preset(self.preset)(
                d_model=self.d_model,
                n_layers=self.n_layers,
                n_heads=self.n_heads,
                n_kv_heads=self.n_kv_heads,
                vocab_size=self.vocab_size,
                context_length=self.context_length,
                dropout=self.dropout,
                tie_embeddings=self.tie_embeddings,
            ).with_changes(self.set)
        given = self.model_dump(exclude={"name", "preset", "file", "model", "set"})
        given = {name: value for name, value in given.items() if value is not None}
        for name in ("n_heads", "n_kv_heads"):
            if name in given:
                given[f"block.attention.{name}"] = given.pop(name)
        source = self.model if self.file is None else ModelConfig.from_yaml(self.file)
        assert source is not None
        return source.with_changes(given | self.set)


class Ladder(Record):
    """Where else the comparison is repeated: at other sizes, and for shorter trainings."""

    sizes: tuple[Changes, ...] = ()
    """Changes to the baseline, by path; each size is trained for equal tokens a parameter."""
    tokens: tuple[float, ...] = ()
    """Shares of the tokens: `[0.25, 0.5]` repeats it for a quarter and for half of them."""

    @model_validator(mode="after")
    def _is_another_place(self) -> Self:
        for share in self.tokens:
            if not 0 < share < 1:
                raise BlocklabError(
                    f"ladder.tokens: {share:g}: expected shares between 0 and 1; the whole is the "
                    "study itself"
                )
        if len(set(self.tokens)) < len(self.tokens):
            raise BlocklabError(f"ladder.tokens: {list(self.tokens)} names a share twice")
        for i, changes in enumerate(self.sizes):
            wrong = [path for path in changes if path.split(".")[0] in ("training", "data")]
            if wrong or not changes:
                raise BlocklabError(
                    f"ladder.sizes.{i}: expected changes to the model, such as {{d_model: 128}}; "
                    f"found {wrong[0] if wrong else 'none'}"
                )
        return self


class StudyTraining(Recipe):
    """How every run of a study trains; the rate is a grid."""

    learning_rates: tuple[float, ...] = Field((1e-3, 3e-3, 1e-2), min_length=1)

    @field_validator("learning_rates")
    @classmethod
    def _rates_are_a_grid(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        if any(rate <= 0 for rate in rates) or len(set(rates)) < len(rates):
            raise ValueError(f"expected different positive rates, found {list(rates)}")
        return tuple(sorted(rates))

    def with_tokens(self, tokens: int) -> "StudyTraining":
        """The same over another length."""
        return StudyTraining.parse(self.plain() | {"steps": None, "tokens": tokens})

    def at(self, learning_rate: float) -> TrainingConfig:
        """The record of a run at one of the rates."""
        fields = self.plain()
        del fields["learning_rates"]
        return TrainingConfig.parse(fields | {"learning_rate": learning_rate})


def is_of_the_study(path: str) -> bool:
    """Whether a path is of a study's own field, which no arm has."""
    own = Study.model_fields.keys() - ModelConfig.model_fields.keys() - {"training", "data"}
    return path.split(".")[0] in own


class Study(Record):
    """One question: a baseline, variants of it, and how they are trained and compared."""

    question: str
    baseline: Baseline
    variants: dict[str, Changes] = Field(default_factory=dict)
    training: StudyTraining = StudyTraining()
    data: DataConfig = DataConfig()
    seeds: Annotated[int, Field(gt=0)] | Literal["two-look"] = 5
    """How many; every arm is trained with seeds 1 to n. `two-look`: five, and five more where
    something is still open; the intervals and p values pay for looking twice."""
    looked: int = Field(0, ge=0)
    """Seeds whose results were already reported when more were added: verdicts then come from the
    others alone. Kept by the study's folder."""
    match: Literal["parameters", "flops", "time", "none"] = "parameters"
    """What the feed-forward width of a variant is solved for, to equal the baseline's; `time` is
    that of a training step, as measured where the study begins."""
    widths: dict[str, int] = Field(default_factory=dict)
    """Of each variant, as `match: time` has measured them; kept by the study's folder."""
    delta: float = Field(0.01, gt=0)
    """Nats: the smallest effect that matters."""
    resolution: float | None = Field(None, gt=0)
    """Nats: the slack that the search refines an arm's rate to, and above which a verdict says
    what it cannot resolve; null is half of delta."""
    metrics: tuple[Literal["recall"], ...] = ()
    """What is measured beside the loss at the end. `recall`: the share of determined answers that
    an arm gives, on a synthetic corpus that has some."""
    search: bool = True
    """Search every arm's learning rate from the grid on; false trains the grid alone."""
    nuisances: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """What must be set to something and could decide the sign: values by path. Every arm is
    trained at every combination of them, and the verdict says on what it depends."""
    ladder: Ladder = Ladder()
    """The comparison again at other sizes and for shorter trainings: does the effect grow?"""
    interactions: dict[str, tuple[str, str, str]] = Field(default_factory=dict)
    """2×2s by name: two variants that change one thing each, and the one that changes both."""
    placebo: bool = True
    """Also train the baseline from another initial draw: what chance alone gives."""
    budgets: dict[str, Changes] = Field(default_factory=dict)
    """Changes to this study by name of the budget: `{quick: {seeds: 3, training.tokens: …}}`."""
    budget: str = "standard"
    """The budget that this study stands at."""
    numerics: Numerics | None = None
    """In what precision its runs compute; null is what a self-test finds fastest where the study
    begins, and its folder keeps."""
    repeat_in_float32: bool = False
    """Where runs compute in half precision: train one seed of every arm at its best rate once more
    in float32, and report the difference."""

    @model_validator(mode="after")
    def _what_is_repeated_has_a_best_rate(self) -> Self:
        if self.repeat_in_float32 and not self.search:
            raise BlocklabError(
                "repeat_in_float32: repeats what was trained at the best rate that a search finds; "
                "give search: true, or leave it out"
            )
        return self

    @property
    def resolved_resolution(self) -> float:
        """Nats, half of delta where it is null."""
        return self.delta / 2 if self.resolution is None else self.resolution

    @model_validator(mode="after")
    def _metrics_can_be_measured(self) -> Self:
        if "recall" in self.metrics:
            answers_of(self.data)
        return self

    @model_validator(mode="after")
    def _rungs_are_equally_long_for_all(self) -> Self:
        """A variant with a length of its own would keep it on every rung."""
        asked = self.ladder.sizes or self.ladder.tokens
        for name, changes in self.variants.items() if asked else ():
            for path in changes:
                if path in ("training.tokens", "training.steps", "training.batch_size"):
                    raise BlocklabError(
                        f"variants.{name}: sets '{path}', and a ladder sets how long its rungs "
                        "train; ask for one of them"
                    )
        return self

    @property
    def looks(self) -> tuple[int, ...]:
        """How many seeds each look has; one look unless the study declares two."""
        return TWO_LOOKS if self.seeds == "two-look" else (self.seeds,)

    @model_validator(mode="after")
    def _some_seeds_are_left_to_judge(self) -> Self:
        if isinstance(self.seeds, int) and self.looked >= self.seeds:
            raise BlocklabError(
                f"seeds: {self.seeds}: {self.looked} were reported before others were added, and "
                f"verdicts come from the others alone; give more than {self.looked}"
            )
        return self

    @model_validator(mode="after")
    def _two_looks_are_at_one_comparison(self) -> Self:
        """Only a verdict has its price for looking twice worked out."""
        if self.seeds != "two-look":
            return self
        if not self.search:
            raise BlocklabError("seeds: two-look needs verdicts; give search: true, or a number")
        others = {
            "nuisances": self.nuisances,
            "interactions": self.interactions,
            "ladder": self.ladder.sizes or self.ladder.tokens,
            "looked": self.looked,
        }
        for name, asked in others.items():
            if asked:
                raise BlocklabError(
                    f"seeds: two-look is worked out for verdicts alone, not for {name}; give a "
                    "number of seeds"
                )
        return self

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        for name in self.variants:
            if name in (self.baseline.name, PLACEBO):
                raise BlocklabError(f"variants.{name}: that name is taken; choose another")
            if not name.strip():
                raise BlocklabError("variants: a variant needs a name")
        return self

    @model_validator(mode="after")
    def _interactions_name_variants(self) -> Self:
        for name, (first, second, both) in self.interactions.items():
            for arm in (first, second, both):
                if arm not in self.variants:
                    raise BlocklabError(
                        f"interactions.{name}: '{arm}' is no variant; {nearest(arm, self.variants)}"
                    )
            together = {**self.variants[first], **self.variants[second]}
            if self.variants[both] != together:
                raise BlocklabError(
                    f"interactions.{name}: '{both}' must change what '{first}' and '{second}' "
                    f"change together: {together}"
                )
        return self

    @model_validator(mode="after")
    def _nuisances_have_levels(self) -> Self:
        for path, levels in self.nuisances.items():
            why = NO_NUISANCES.get("data" if path.split(".")[0] == "data" else path)
            if why is not None:
                raise BlocklabError(f"nuisances.{path}: is no nuisance: {why}")
            if len(levels) < 2:
                raise BlocklabError(f"nuisances.{path}: expected two values or more, to compare")
            if any(level in levels[:i] for i, level in enumerate(levels)):
                raise BlocklabError(f"nuisances.{path}: {list(levels)} names a value twice")
            places = [("ladder.sizes", changes) for changes in self.ladder.sizes]
            places += [(f"variants.{name}", changes) for name, changes in self.variants.items()]
            for place, changes in places:
                if any(p == path or p.startswith(f"{path}.") for p in changes):
                    raise BlocklabError(
                        f"{place}: sets '{path}', which is a nuisance; it cannot be both"
                    )
        return self

    @classmethod
    def from_yaml(cls, path: str | Path) -> "Study":
        """Read a study file. Raises BlocklabError naming the file and the path in it."""
        data = read_yaml(path)
        if not isinstance(data, dict):
            raise BlocklabError(f"{path}: expected a mapping of a study's fields")
        if data.keys() & {"preset", "block"}:
            raise BlocklabError(
                f"{path}: describes a model, not a study; a study asks of it with "
                f"baseline: {{file: {path}}}"
            )
        try:
            return cls.parse(data)
        except BlocklabError as error:
            raise BlocklabError(f"{path}: {error}") from None

    def to_yaml(self) -> str:
        """The study as text, every field stated."""
        return write_yaml(self.plain())

    def at_budget(self, name: str) -> "Study":
        """The study with the changes of one of its budgets; `standard` is the study as written."""
        if name not in self.budgets and name != "standard":
            raise BlocklabError(f"unknown budget '{name}'; {nearest(name, self.known_budgets())}")
        changes = self.budgets.get(name, {})
        return with_changes(self, {**changes, "budget": name}, at=f"budgets.{name}")

    def known_budgets(self) -> list[str]:
        """What `--budget` may be: standard, which is the study as it stands, and its own."""
        return sorted({"standard", *self.budgets})

    def with_settings(self, settings: Mapping[str, object]) -> "Study":
        """The study with its baseline (or `training.`, `data.`) changed by path.

        Raises BlocklabError for a bad path or value, and for one that the study itself has.
        """
        changes: dict[str, object] = {}
        model: dict[str, object] = {}
        for path, value in settings.items():
            if is_of_the_study(path):
                option = OPTIONS.get(path.split(".")[0], "state it in the study's file")
                raise BlocklabError(
                    f"{path}: belongs to the study, not to its baseline, training or data; {option}"
                )
            if path.split(".")[0] in ("training", "data"):
                changes[path] = value
            else:
                model[path] = value
        if model:
            changes["baseline.set"] = {**self.baseline.set, **model}
        return with_changes(self, changes)

    def with_variants(self, variants: Mapping[str, Changes]) -> "Study":
        """The study with further variants, and with further changes of those that it has.

        Raises BlocklabError where a variant already gives a path another value.
        """
        together = dict(self.variants)
        for name, changes in variants.items():
            known = together.get(name, {})
            for path in changes.keys() & known.keys():
                if changes[path] != known[path]:
                    raise BlocklabError(
                        f"variants.{name}: '{path}' is given twice, as {known[path]!r} and as "
                        f"{changes[path]!r}; give one, or another variant's name"
                    )
            together[name] = {**known, **changes}
        return with_changes(self, {"variants": together})

    def resolved(self) -> "Study":
        """The study with its whole baseline stated and no budgets left to choose from."""
        model = {"name": self.baseline.name, "model": self.baseline.config().plain()}
        return Study.parse(self.plain() | {"baseline": model, "budgets": {}})

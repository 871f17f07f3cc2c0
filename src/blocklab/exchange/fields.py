"""A checkpoint's configuration, read field by field: what no one has read in the end is refused.

A family reads every field whose meaning it implements, and states the values it accepts for those
it does not. Only fields in `NEUTRAL`, which cannot change a logit, may be left unread.
"""

from collections.abc import Mapping, Sequence

from blocklab.errors import BlocklabError, nearest

NEUTRAL = frozenset(
    {
        # what the file is and who wrote it
        *("_name_or_path", "architectures", "auto_map", "model_type", "transformers_version"),
        *("dtype", "torch_dtype", "_attn_implementation_autoset", "attn_implementation"),
        *(
            "ignore_keys_at_rope_validation",
            "_attn_implementation",
            "tokenizer_class",
            "license",
            "language",
            "tags",
        ),
        *("transformers.js_config", "unsloth_fixed", "unsloth_version"),
        # how it is called, not what it computes
        *("use_cache", "cache_implementation", "return_dict", "torchscript", "use_bfloat16"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "output_scores"),
        *(
            "output_past",
            "gradient_checkpointing",
            "return_dict_in_generate",
            "keys_to_ignore_at_inference",
        ),
        *("max_length", "min_length", "do_sample", "temperature", "top_k", "top_p", "num_beams"),
        *("typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
        *("early_stopping", "num_beam_groups", "diversity_penalty", "num_return_sequences"),
        *("encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "bad_words_ids"),
        *("suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "max_new_tokens"),
        *("forced_eos_token_id", "remove_invalid_values", "decoder_start_token_id"),
        # ids of special tokens
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id"),
        # first values, which a checkpoint replaces
        *("initializer_range", "init_std", "initializer_factor"),
        # heads for other tasks than language modelling
        *(
            "id2label",
            "label2id",
            "num_labels",
            "_num_labels",
            "problem_type",
            "finetuning_task",
            "prefix",
        ),
        *("task_specific_params", "classifier_dropout", "summary_activation", "summary_type"),
        *("summary_first_dropout", "summary_proj_to_labels", "summary_use_proj"),
        # memory and speed of one matrix product
        *("pretraining_tp", "chunk_size_feed_forward"),
    }
)
"""Fields that change no logit, whatever their value."""

_REQUIRED = object()
_LARGEST = 2**31
_DEEPEST = 1000  # layers; a lying number must not cost time, and no published model has 200


class Fields:
    """The fields of one JSON object; every reader names the field in its error."""

    def __init__(self, data: Mapping[str, object], at: str, within: str = "") -> None:
        self._data, self.at, self._within = data, at, within
        self._read: set[str] = set()
        self.notes: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the field is there with another value than null."""
        return self._data.get(name) is not None

    def states(self, name: str) -> bool:
        """Whether the field is there, null included."""
        return name in self._data

    def value(self, name: str, default: object = _REQUIRED) -> object:
        """The field as it is; null counts as missing. Raises BlocklabError without a default."""
        self._read.add(name)
        found = self._data.get(name)
        if found is not None:
            return found
        if default is _REQUIRED:
            raise BlocklabError(f"{self._path(name)} is missing; the checkpoint needs it")
        return default

    def whole(self, name: str, default: object = _REQUIRED) -> int:
        """A whole number above 0."""
        found = self.value(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 < found < _LARGEST:
            raise self.refused(name, found, "a whole number above 0")
        return found

    def n_layers(self, name: str) -> int:
        """A number of layers."""
        found = self.whole(name)
        if found > _DEEPEST:
            raise self.refused(name, found, f"at most {_DEEPEST} layers")
        return found

    def optional_whole(self, name: str) -> int | None:
        """A whole number above 0, or None where it is null or missing."""
        return self.whole(name) if self._noted(name) else None

    def number(self, name: str, default: object = _REQUIRED) -> float:
        """A finite number."""
        found = self.value(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.refused(name, found, "a number")
        if not abs(found) < 1e300:
            raise self.refused(name, found, "a finite number")
        return float(found)

    def optional_number(self, name: str) -> float | None:
        """A finite number, or None where it is null or missing."""
        return self.number(name) if self._noted(name) else None

    def flag(self, name: str, default: object = _REQUIRED) -> bool:
        found = self.value(name, default)
        if not isinstance(found, bool):
            raise self.refused(name, found, "true or false")
        return found

    def text(self, name: str, default: object = _REQUIRED) -> str:
        found = self.value(name, default)
        if not isinstance(found, str):
            raise self.refused(name, found, "a text")
        return found

    def items(self, name: str) -> Sequence[object] | None:
        """A list, or None where it is null or missing."""
        found = self.value(name, None)
        if found is not None and not isinstance(found, list):
            raise self.refused(name, found, "a list")
        return found

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers."""
        found = self.items(name) or ()
        if not all(isinstance(v, int | float) and abs(v) < 1e300 for v in found):
            raise self.refused(name, found, "a list of numbers")
        return tuple(float(v) for v in found)  # type: ignore[arg-type]

    def one_of(self, name: str, choices: Mapping[str, str], default: object = _REQUIRED) -> str:
        """What `choices` makes of a word."""
        word = self.text(name, default)
        if word not in choices:
            raise BlocklabError(
                f"{self._path(name)} '{word}' is not implemented; {_valid(choices)}"
            )
        return choices[word]

    def nested(self, name: str) -> "Fields | None":
        """An object inside this one, or None where it is null or missing."""
        found = self.value(name, None)
        if found is None:
            return None
        if not isinstance(found, dict):
            raise self.refused(name, found, "an object")
        inner = Fields(found, self.at, f"{self._within}{name}.")
        inner.notes = self.notes
        return inner

    def expect(self, name: str, *accepted: object) -> None:
        """Refuse every value but null, a missing one and these: the rest is not implemented."""
        found = self.value(name, None)
        if found is not None and not any(_same(found, value) for value in accepted):
            said = " or ".join(map(_plain, accepted)) or "null"
            raise BlocklabError(
                f"{self._path(name)} is {_plain(found)}, which is not implemented; expected {said}"
            )

    def ignore(self, *names: str) -> None:
        """These change no logit here."""
        self._read.update(names)

    def only_in_training(self, name: str) -> None:
        """A rate that acts in training alone and that this model does not take over."""
        if rate := self.number(name, 0.0):
            self.notes.append(f"{name} {rate:g} acts in training only and is not taken over")

    def refused(self, name: str, found: object, expected: str) -> BlocklabError:
        return BlocklabError(f"{self._path(name)} is {_plain(found)}, expected {expected}")

    def refuse_unread(self) -> None:
        """Raise BlocklabError naming a field that no one has read."""
        for name in self._data:
            if name not in self._read and (self._within or name not in NEUTRAL):
                raise BlocklabError(
                    f"{self._path(name)} is {_plain(self._data[name])}: the meaning of this field "
                    "is not implemented, so the logits could be wrong"
                )

    def _noted(self, name: str) -> bool:
        self._read.add(name)
        return self.has(name)

    def _path(self, name: str) -> str:
        return f"{self.at}: {self._within}{name}"


def _same(one: object, other: object) -> bool:
    """Equal, and true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _plain(value: object) -> str:
    words = {True: "true", False: "false"}
    said = words[value] if isinstance(value, bool) else "null" if value is None else repr(value)
    return said if len(said) <= 80 else f"{said[:77]}…"


def _valid(choices: Mapping[str, str]) -> str:
    return nearest("", choices)

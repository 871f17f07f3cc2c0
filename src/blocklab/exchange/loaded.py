"""What `load` gives back."""

from dataclasses import dataclass

from blocklab.data.tokenizer import Tokenizer
from blocklab.exchange.conventions import TextConventions, let_come_with
from blocklab.model.transformer import Transformer


@dataclass(frozen=True, eq=False, repr=False)
class Loaded:
    """A model with its weights, in evaluation mode, and what came with it."""

    model: Transformer
    tokenizer: Tokenizer | None
    source: str
    """Where it came from, and of which kind."""
    start_ids: tuple[int, ...] = ()
    """Ids that the tokenizer's authors put before every text."""
    stop_ids: tuple[int, ...] = ()
    """Ids after which the model is meant to stop writing."""
    notes: tuple[str, ...] = ()
    """What of the checkpoint was read with a grain of salt, in sentences."""
    conventions: TextConventions | None = None
    """What its authors said about texts; an export of the model or its tokenizer says it again."""

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        tokenizer = "no tokenizer" if self.tokenizer is None else repr(self.tokenizer)
        return f"Loaded({self.source}: {size:,} parameters, {tokenizer})"

    def __post_init__(self) -> None:
        if self.conventions is None:
            return
        let_come_with(self.model, self.conventions)
        if self.tokenizer is not None:
            let_come_with(self.tokenizer, self.conventions)

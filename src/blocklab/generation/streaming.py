"""Ids to text while they are being written: whole characters only, and nothing of a stop string.

One `TextStream` serves one sequence. Putting the pieces anywhere is the caller's business.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from blocklab.errors import BlocklabError

_BROKEN = "\ufffd"  # what a tokenizer makes of bytes that are no character, or not yet one


class Decoder(Protocol):
    """What makes text of ids."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of all of them; bytes that are no character, or not yet one, become U+FFFD."""
        ...


class TextStream:
    """The text of new ids after a prompt, piece by piece.

    A character whose bytes are spread over several tokens is held back until it is whole, and what
    may be the beginning of a stop string until it is known not to be one. `stopped` is set once a
    stop string is met; the text ends before it. Raises BlocklabError for an empty stop string.
    """

    def __init__(self, tokenizer: Decoder, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        if not all(stop):
            raise BlocklabError("a stop string is empty; give at least one character")
        self._decode = tokenizer.decode
        self._ids = list(prompt)
        # Ids are decoded from one whole character back: some tokenizers drop the first space.
        self._anchor, self._read = 0, len(self._ids)
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """What can be shown for certain after one more id."""
        self._ids.append(token)
        before, now = self._texts()
        if now.endswith(_BROKEN) or len(now) <= len(before):
            return ""
        self._anchor, self._read = self._read, len(self._ids)
        return self._released(now[len(before) :])

    def end(self) -> str:
        """What was held back, now that no more ids come."""
        before, now = self._texts()
        self._anchor = self._read = len(self._ids)
        shown = self._released(now[len(before) :])
        rest, self._held = "" if self.stopped else self._held, ""
        return shown + rest

    def _texts(self) -> tuple[str, str]:
        ids = self._ids[self._anchor :]
        return self._decode(ids[: self._read - self._anchor]), self._decode(ids)

    def _released(self, piece: str) -> str:
        if self.stopped:
            return ""
        text = self._held + piece
        found = [place for place in map(text.find, self._stop) if place >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        shown, self._held = text[: len(text) - keep], text[len(text) - keep :]
        return shown


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` may be the beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0

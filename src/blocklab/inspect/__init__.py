"""Looking inside a model: gradients, the residual stream, norms, feed-forwards, attention, lens.

Everything is plain data from a model and a batch, and leaves both as they were to the bit.
"""

from blocklab.inspect.attention_maps import HeadMeasures, attention_maps, head_measures
from blocklab.inspect.feed_forward import HiddenUnits, hidden_units
from blocklab.inspect.gradients import gradient_norms
from blocklab.inspect.inspection import Inspection, by_block, inspect_model
from blocklab.inspect.logit_lens import LensReading, logit_lens
from blocklab.inspect.norms import NormMeasures, norm_measures
from blocklab.inspect.recording import Recorded, record
from blocklab.inspect.stream import StreamSizes, position_similarity, stream_sizes, streams
from blocklab.inspect.updates import update_ratios

__all__ = [
    "HeadMeasures",
    "HiddenUnits",
    "Inspection",
    "LensReading",
    "NormMeasures",
    "Recorded",
    "StreamSizes",
    "attention_maps",
    "by_block",
    "gradient_norms",
    "head_measures",
    "hidden_units",
    "inspect_model",
    "logit_lens",
    "norm_measures",
    "position_similarity",
    "record",
    "stream_sizes",
    "streams",
    "update_ratios",
]


def __dir__() -> list[str]:
    return sorted(__all__)

"""Looking inside a model: gradients by parameter, and how alike its positions become."""

from blocklab.inspect.gradients import gradient_norms
from blocklab.inspect.stream import position_similarity

__all__ = ["gradient_norms", "position_similarity"]

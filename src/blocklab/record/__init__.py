"""Records: frozen, validated pieces of configuration, and how a dotted path changes one.

A record knows nothing of models or training; every room builds its own records from this base.
"""

from blocklab.record.kept import Kept, kept_by_switches
from blocklab.record.paths import changed, revalidated, with_changes
from blocklab.record.records import Record, Tagged, Value
from blocklab.record.trees import every_path, first_difference

__all__ = [
    "Kept",
    "Record",
    "Tagged",
    "Value",
    "changed",
    "every_path",
    "first_difference",
    "kept_by_switches",
    "revalidated",
    "with_changes",
]

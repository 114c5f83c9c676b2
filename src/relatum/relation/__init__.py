"""THE HEART: attention over a batch, attached to an unmodified model and removed without a trace."""

from relatum.relation.attach import attach, attached_relation
from relatum.relation.attention import BatchAttention
from relatum.relation.presence import Presence
from relatum.relation.relation import Relation
from relatum.relation.specs import BatchFormer, BatchFormerV2
from relatum.relation.streams import repeat_targets, split_streams

__all__ = [
    "BatchAttention",
    "BatchFormer",
    "BatchFormerV2",
    "Presence",
    "Relation",
    "attach",
    "attached_relation",
    "repeat_targets",
    "split_streams",
]

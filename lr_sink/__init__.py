"""The side that receives: an application's listener, and the store that makes it exactly once."""

from lr_sink.engine import Step
from lr_sink.listener import RoutingQueueListener
from lr_sink.partition import QueueState, QueueStatus
from lr_sink.positions import StoredPosition
from lr_sink.settings import ListenerSettings
from lr_sink.store import PositionStore, SqlPositionStore
from lr_sink.transaction import Transaction, TxnPosition

__all__ = [
    "ListenerSettings",
    "PositionStore",
    "QueueState",
    "QueueStatus",
    "RoutingQueueListener",
    "SqlPositionStore",
    "Step",
    "StoredPosition",
    "Transaction",
    "TxnPosition",
]

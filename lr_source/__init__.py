"""The side that sends."""

from lr_source.client import RoutingQueueClient
from lr_source.entry import Entry
from lr_source.transaction import Transaction

__all__ = ["Entry", "RoutingQueueClient", "Transaction"]

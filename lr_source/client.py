"""What an application imports to send."""

from __future__ import annotations

from typing import Unpack

from lr_kafka.borrowed import BorrowedProducer
from lr_kafka.clients import Producer
from lr_source.outbox import Outbox
from lr_source.settings import ClientOptions, ClientSettings
from lr_source.transaction import JoinedTransaction, OwnTransaction, Transaction
from lr_wire.naming import client_name, site_id


class RoutingQueueClient:
    """
    Replicates what an application hands over, inside the application's own Kafka transactions.

        client = RoutingQueueClient("policy", source="site-a", producer=producer)
        with client.transaction() as txn:
            producer.produce("orders", value=b"...")
            txn.transmit_log_entry(b"payload", ["site-b", "site-c"])

    The producer is the application's: it has a `transactional.id`, its `init_transactions()` was called, and LR neither
    configures nor closes it. Use a client from one thread at a time, as the transactions of its producer. Settings are
    those of `ClientSettings`.
    """

    def __init__(self, client: str, *, source: str, producer: Producer, **settings: Unpack[ClientOptions]) -> None:
        """
        Check the names and the producer; nothing is sent.

        `client` names the application area whose data this is, `source` the site of the producer's cluster.
        Raises InvalidName, ConfigError for a setting, NotTransactional for a producer without `transactional.id`.
        """
        self._client = client_name(client)
        self._source = site_id(source)
        self._outbox = Outbox(self._client, self._source, BorrowedProducer(producer), ClientSettings(**settings))

    def transaction(self, ordering_key: str | bytes | None = None) -> Transaction:
        """
        Begin a transaction with the with-block and commit it at its end; an exception aborts it and is raised again.

        Transactions with the same ordering key arrive in the order in which they are committed; without one, all
        transactions of the client do.
        """
        return OwnTransaction(self._outbox, ordering_key)

    def join(self, ordering_key: str | bytes | None = None) -> Transaction:
        """
        Take part in a transaction that the application has begun, and commits or aborts after the with-block.

        Once per transaction: each with-block is a transaction of its own for the destinations. Raises NotInTransaction
        if there is none. When an exception leaves the with-block, the application must abort.
        """
        with self._outbox.exclusive():
            self._outbox.require_idle()
            self._outbox.producer.require_open()
        return JoinedTransaction(self._outbox, ordering_key)

    def __repr__(self) -> str:
        return f"RoutingQueueClient({self._client!r}, source={self._source!r})"

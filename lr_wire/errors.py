"""
The error tree. A base class is something a caller would catch.

ReplicationError
├── ConfigError             a setting or a file is wrong
│   └── InvalidName         a site id or client name breaks the naming rule
├── SetupError              this machine lacks something (Java, the Kafka jars, a port, disk space)
├── UsageError              the API was called in a way that cannot work
│   ├── InvalidEntry        a payload, key, header or list of destinations of the wrong kind
│   ├── NotAtomic           a position would not be committed together with the data it stands for
│   ├── NotInTransaction
│   ├── NotTransactional
│   ├── OwnSite             an entry is addressed to the site it comes from
│   ├── PayloadTooLarge
│   └── TransactionOpen     there is a transaction already
├── WireError               bytes that cannot be understood
├── BrokerError             Kafka said no; `retriable`, `fenced` and `unauthorised` tell how
│   ├── ProducerFenced      another instance has taken over the transactional.id
│   └── ResultUnknown       a transaction may or may not have been committed
├── PositionLost            what a session must read next is no longer in the log
├── PositionConflict        another process applied this transaction already
├── QueueTrimmed            records left a receive queue before they were applied
├── QueueReplaced           a receive queue is not the one that a position belongs to
└── ApplyFailed             the application did not take a transaction, however often it was asked
"""

from __future__ import annotations


class ReplicationError(Exception):
    """Any failure that LR reports; `hint` is the next step for whoever reads it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep the message and the hint apart, and show both."""
        super().__init__(f"{message} ({hint})" if hint else message)
        self.message = message
        self.hint = hint


class ConfigError(ReplicationError):
    """A setting, a configuration file or an argument is wrong."""


class InvalidName(ConfigError):
    """A site id or client name breaks the naming rule."""


class SetupError(ReplicationError):
    """The machine lacks something that LR needs to run here."""


class UsageError(ReplicationError):
    """The API was called in a way that cannot work."""


class InvalidEntry(UsageError):
    """A payload, key, header or list of destinations is of the wrong kind; nothing of it was taken."""


class NotAtomic(UsageError):
    """A position was not, or would not be, committed together with the data it stands for."""


class NotInTransaction(UsageError):
    """Entries were handed over outside a transaction."""


class NotTransactional(UsageError):
    """The producer has no `transactional.id`, or `init_transactions()` was not called."""


class OwnSite(UsageError):
    """An entry is addressed to the site it comes from."""


class PayloadTooLarge(UsageError):
    """A payload is larger than the limit; nothing of it was written."""


class TransactionOpen(UsageError):
    """A transaction was to be begun while the client or its producer is in one."""


class WireError(ReplicationError):
    """Bytes that cannot be understood; the message is the reason that a dead letter carries."""


class BrokerError(ReplicationError):
    """Kafka refused or failed an operation."""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: str = "",
        retriable: bool = False,
        fenced: bool = False,
        unauthorised: bool = False,
        abortable: bool = False,
    ) -> None:
        """Carry what a caller decides on beside the text."""
        super().__init__(message, hint=hint)
        self.code = code
        self.retriable = retriable
        self.fenced = fenced
        self.unauthorised = unauthorised
        self.abortable = abortable


class ProducerFenced(BrokerError):
    """Another producer with the same `transactional.id` took over; this one can write nothing any more."""


class ResultUnknown(BrokerError):
    """The cluster did not tell in time whether a transaction was committed; its producer must not be used any more."""


class PositionLost(ReplicationError):
    """What a session must read next is no longer in the log; only a full copy can bring it up to date."""


class PositionConflict(ReplicationError):
    """The stored position is not the one this transaction follows: another process has applied it."""


class QueueTrimmed(ReplicationError):
    """Records left a receive queue before this listener applied them."""


class QueueReplaced(ReplicationError):
    """A receive queue is not the one that a position belongs to: it was deleted and made anew, or has lost its end."""


class ApplyFailed(ReplicationError):
    """The application refused a transaction, or failed on it, as often as it may: the listener gave up."""

from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionStatus(_message.Message):
    __slots__ = ("state", "reason", "changed_ms", "heartbeat_ms", "owner", "receive_queue", "partitions", "entries_per_second")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[SessionStatus.State]
        DISCOVERED: _ClassVar[SessionStatus.State]
        NEGOTIATING: _ClassVar[SessionStatus.State]
        SNAPSHOT_REQUESTED: _ClassVar[SessionStatus.State]
        SNAPSHOT_TRANSFER: _ClassVar[SessionStatus.State]
        SNAPSHOT_APPLY: _ClassVar[SessionStatus.State]
        LOG_ENTRY_SYNC: _ClassVar[SessionStatus.State]
        PAUSED: _ClassVar[SessionStatus.State]
        NEEDS_SNAPSHOT: _ClassVar[SessionStatus.State]
        BLOCKED: _ClassVar[SessionStatus.State]
        STOPPED: _ClassVar[SessionStatus.State]
    UNKNOWN: SessionStatus.State
    DISCOVERED: SessionStatus.State
    NEGOTIATING: SessionStatus.State
    SNAPSHOT_REQUESTED: SessionStatus.State
    SNAPSHOT_TRANSFER: SessionStatus.State
    SNAPSHOT_APPLY: SessionStatus.State
    LOG_ENTRY_SYNC: SessionStatus.State
    PAUSED: SessionStatus.State
    NEEDS_SNAPSHOT: SessionStatus.State
    BLOCKED: SessionStatus.State
    STOPPED: SessionStatus.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHANGED_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    state: SessionStatus.State
    reason: str
    changed_ms: int
    heartbeat_ms: int
    owner: str
    receive_queue: str
    partitions: int
    entries_per_second: float
    def __init__(self, state: _Optional[_Union[SessionStatus.State, str]] = ..., reason: _Optional[str] = ..., changed_ms: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ..., owner: _Optional[str] = ..., receive_queue: _Optional[str] = ..., partitions: _Optional[int] = ..., entries_per_second: _Optional[float] = ...) -> None: ...

class PartitionPosition(_message.Message):
    __slots__ = ("resume_from", "forwarded_through", "topic_id", "cluster_id", "unterminated", "transactions", "entries", "checksum", "updated_ms")
    RESUME_FROM_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    UNTERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    UPDATED_MS_FIELD_NUMBER: _ClassVar[int]
    resume_from: int
    forwarded_through: int
    topic_id: str
    cluster_id: str
    unterminated: _containers.RepeatedCompositeFieldContainer[UnterminatedTransaction]
    transactions: int
    entries: int
    checksum: int
    updated_ms: int
    def __init__(self, resume_from: _Optional[int] = ..., forwarded_through: _Optional[int] = ..., topic_id: _Optional[str] = ..., cluster_id: _Optional[str] = ..., unterminated: _Optional[_Iterable[_Union[UnterminatedTransaction, _Mapping]]] = ..., transactions: _Optional[int] = ..., entries: _Optional[int] = ..., checksum: _Optional[int] = ..., updated_ms: _Optional[int] = ...) -> None: ...

class UnterminatedTransaction(_message.Message):
    __slots__ = ("incarnation", "first_sequence", "last_offset")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    first_sequence: int
    last_offset: int
    def __init__(self, incarnation: _Optional[bytes] = ..., first_sequence: _Optional[int] = ..., last_offset: _Optional[int] = ...) -> None: ...

class Ownership(_message.Message):
    __slots__ = ("owner", "since_ms", "term")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    owner: str
    since_ms: int
    term: int
    def __init__(self, owner: _Optional[str] = ..., since_ms: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

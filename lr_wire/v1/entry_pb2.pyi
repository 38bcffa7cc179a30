from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicationType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NONE: _ClassVar[ReplicationType]
    LOG_ENTRY_SYNC: _ClassVar[ReplicationType]
    SNAPSHOT_SYNC: _ClassVar[ReplicationType]
    LAST_FULL_SYNC_ENTRY: _ClassVar[ReplicationType]
NONE: ReplicationType
LOG_ENTRY_SYNC: ReplicationType
SNAPSHOT_SYNC: ReplicationType
LAST_FULL_SYNC_ENTRY: ReplicationType

class RoutingTableEntryMsg(_message.Message):
    __slots__ = ("destinations", "type", "opaque_payload", "send", "receive", "incarnation", "first_sequence", "first_index", "indexes", "source_time_ms", "key", "headers", "whole")
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OPAQUE_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    destinations: _containers.RepeatedScalarFieldContainer[str]
    type: ReplicationType
    opaque_payload: _containers.RepeatedScalarFieldContainer[bytes]
    send: SendHead
    receive: ReceiveHead
    incarnation: bytes
    first_sequence: int
    first_index: int
    indexes: _containers.RepeatedScalarFieldContainer[int]
    source_time_ms: int
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[EntryHeader]
    whole: bool
    def __init__(self, destinations: _Optional[_Iterable[str]] = ..., type: _Optional[_Union[ReplicationType, str]] = ..., opaque_payload: _Optional[_Iterable[bytes]] = ..., send: _Optional[_Union[SendHead, _Mapping]] = ..., receive: _Optional[_Union[ReceiveHead, _Mapping]] = ..., incarnation: _Optional[bytes] = ..., first_sequence: _Optional[int] = ..., first_index: _Optional[int] = ..., indexes: _Optional[_Iterable[int]] = ..., source_time_ms: _Optional[int] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[EntryHeader, _Mapping]]] = ..., whole: _Optional[bool] = ...) -> None: ...

class SendHead(_message.Message):
    __slots__ = ("client", "record", "last", "destinations_size", "body_offset")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_SIZE_FIELD_NUMBER: _ClassVar[int]
    BODY_OFFSET_FIELD_NUMBER: _ClassVar[int]
    client: str
    record: int
    last: bool
    destinations_size: int
    body_offset: int
    def __init__(self, client: _Optional[str] = ..., record: _Optional[int] = ..., last: _Optional[bool] = ..., destinations_size: _Optional[int] = ..., body_offset: _Optional[int] = ...) -> None: ...

class ReceiveHead(_message.Message):
    __slots__ = ("record", "records", "entries", "completed_at")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_AT_FIELD_NUMBER: _ClassVar[int]
    record: int
    records: int
    entries: int
    completed_at: int
    def __init__(self, record: _Optional[int] = ..., records: _Optional[int] = ..., entries: _Optional[int] = ..., completed_at: _Optional[int] = ...) -> None: ...

class EntryHeader(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

"""
A TCP proxy in front of a broker that can spoil single requests.

It understands just enough of Kafka's protocol to tell one request from another: frames begin with their size; a
request then says which API it is and its correlation id, a response repeats that id. A `Spoiler` chooses requests and
says what happens to them; the proxy keeps what it has done, so that a test can insist that it was done.

The broker gets a listener of its own for those who come through the proxy (`broker_properties`): the address that it
advertises there is the proxy's. Whoever uses the broker's ordinary address is not disturbed.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from lr_kafka.ports import HOST, free_ports

_REQUEST = struct.Struct(">hhi")
_CORRELATION = struct.Struct(">i")
_SIZE = struct.Struct(">i")

# How long a broker on the same machine needs at most to have handled a request.
_HANDLED_S = 0.1


class Api(enum.IntEnum):
    """Requests that are told apart; all others pass."""

    PRODUCE = 0
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26


class Harm(enum.Enum):
    """
    What can happen to a request.

    A connection on which something was dropped or delayed is dead: nothing else passes on it, though both ends see it
    open. That is what a network does to a TCP connection when it loses packets for good.
    """

    DELAY_REQUEST = "it comes to the broker late"
    DROP_REQUEST = "it never comes to the broker"
    DROP_RESPONSE = "its answer never comes back"
    HOLD_RESPONSE = "its answer is held back for ever, the connection goes on"
    CUT = "the connection breaks before the answer comes back"
    CUT_AND_DELAY = "the connection breaks; it comes to the broker in the middle of the next transaction all the same"


@dataclass
class Spoiler:
    """Harms commits that carry entries: the first `times` of those that come after `skip` others."""

    harm: Harm
    transactional_id: str
    times: int = 1
    skip: int = 0
    delay_s: float = 0.0
    """For DELAY_REQUEST."""

    done: int = 0
    """How many requests were harmed: dropped, held back, cut off, or have come late."""

    _carries_entries: bool = False

    def wants(self, api: int, frame: bytes) -> bool:
        """Tell whether this request is to be harmed."""
        if not self.concerns(frame):
            return False
        if api == Api.ADD_PARTITIONS_TO_TXN:
            self._carries_entries |= b"LRQ_Recv_" in frame
        if api != Api.END_TXN or not self._carries_entries:
            return False
        self._carries_entries = False
        self.skip -= 1
        if self.skip >= 0 or self.times <= 0:
            return False
        self.times -= 1
        return True

    def concerns(self, frame: bytes) -> bool:
        """Tell whether this request comes from the producer in question."""
        return self.transactional_id.encode() in frame

    def brings_entries(self, api: int, frame: bytes) -> bool:
        """Tell whether this request brings records into a transaction that carries entries."""
        return api == Api.PRODUCE and self._carries_entries and self.concerns(frame)


@dataclass(eq=False)
class _Connection:
    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    harmed: dict[int, Spoiler] = field(default_factory=dict)
    """By correlation id, requests whose answers are to be harmed."""

    dead: bool = False


class Proxy:
    """One listening port in front of one broker, served by a thread."""

    def __init__(self) -> None:
        self.port, self._broker_port = free_ports(2)
        self._spoiler: Spoiler | None = None
        # A request whose connection was cut, on its way.
        self._stray: tuple[_Connection, bytes] | None = None
        # A loop alone does not keep a task that waits for a dead connection.
        self._connections: dict[_Connection, asyncio.Task[Any] | None] = {}
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    def broker_properties(self, port: int, controller_port: int) -> dict[str, str]:
        """Give the settings of a broker with an ordinary listener at `port` and another one behind this proxy."""
        names = {"PLAINTEXT": port, "PROXIED": self._broker_port, "CONTROLLER": controller_port}
        return {
            "listeners": ",".join(f"{name}://{HOST}:{number}" for name, number in names.items()),
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port},PROXIED://{HOST}:{self.port}",
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        }

    def spoil(self, spoiler: Spoiler | None) -> None:
        """Let requests be harmed from now on; None: no more."""
        self._call(self._set(spoiler))

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, HOST, self.port))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10.0)

    async def _set(self, spoiler: Spoiler | None) -> None:
        self._spoiler = spoiler

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.01)  # the loop closes the sockets in its next rounds

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            from_broker, to_broker = await asyncio.open_connection(HOST, self._broker_port)
        except OSError:
            to_client.close()
            return
        connection = _Connection(to_client, to_broker)
        self._connections[connection] = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._requests(connection, from_client))
                both.create_task(self._answers(connection, from_broker))
        finally:
            del self._connections[connection]
            to_client.close()
            to_broker.close()

    async def _requests(self, connection: _Connection, from_client: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await _frame(from_client)
                api, _, correlation = _REQUEST.unpack_from(frame, _SIZE.size)
                spoiler = self._spoiler
                if connection.dead:
                    continue
                if spoiler is not None and spoiler.wants(api, frame):
                    await self._harm(connection, spoiler, correlation, frame)
                    continue
                await _write(connection.broker, frame)
                if spoiler is not None and self._stray is not None and spoiler.brings_entries(api, frame):
                    await self._deliver_stray(spoiler)
        # The client is gone. On a dead connection, what it had sent is still under way to the broker.
        if not connection.dead and not connection.broker.is_closing():
            connection.broker.write_eof()

    async def _harm(self, connection: _Connection, spoiler: Spoiler, correlation: int, frame: bytes) -> None:
        harm = spoiler.harm
        if harm in {Harm.DROP_RESPONSE, Harm.HOLD_RESPONSE, Harm.CUT}:
            connection.harmed[correlation] = spoiler
            await _write(connection.broker, frame)
            return
        connection.dead = True
        if harm is Harm.DROP_REQUEST:
            spoiler.done += 1
        elif harm is Harm.CUT_AND_DELAY:
            self._stray = (connection, frame)
            connection.client.close()
        else:
            await asyncio.sleep(spoiler.delay_s)
            await _write(connection.broker, frame)
            spoiler.done += 1

    async def _deliver_stray(self, spoiler: Spoiler) -> None:
        """Bring the stray request between two others of the same producer: the one just passed on, and the next one."""
        assert self._stray is not None
        connection, frame = self._stray
        self._stray = None
        await asyncio.sleep(_HANDLED_S)
        await _write(connection.broker, frame)
        spoiler.done += 1
        await asyncio.sleep(_HANDLED_S)

    async def _answers(self, connection: _Connection, from_broker: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await _frame(from_broker)
                (correlation,) = _CORRELATION.unpack_from(frame, _SIZE.size)
                spoiler = connection.harmed.pop(correlation, None)
                if spoiler is not None:
                    connection.dead = spoiler.harm is not Harm.HOLD_RESPONSE
                    if spoiler.harm is Harm.CUT:
                        connection.client.close()
                    spoiler.done += 1
                elif not connection.dead:
                    await _write(connection.client, frame)
        connection.client.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(_SIZE.size)
    return head + await reader.readexactly(_SIZE.unpack(head)[0])


async def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(frame)
    await writer.drain()

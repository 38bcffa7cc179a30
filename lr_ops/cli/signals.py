"""
Waiting for signals in a process with threads.

A signal may be delivered to any thread, but only the main thread runs Python's handlers, and not while it waits for a
lock. So the main thread waits for a pipe instead, into which the interpreter writes at once, whichever thread was hit.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from types import TracebackType
from typing import Any, Self


class SignalMailbox:
    """Collects signals while the with-block runs; the handlers of before are back afterwards."""

    def __init__(self, *numbers: signal.Signals) -> None:
        """Choose the signals."""
        self._numbers = numbers
        self._received: deque[signal.Signals] = deque()
        self._before: dict[signal.Signals, Any] = {}
        self._read_end = self._write_end = self._wakeup_before = -1

    def wait(self, timeout_s: float) -> list[signal.Signals]:
        """Wait for signals, or for `wake`, for at most that long; give the signals in the order of arrival."""
        ready, _, _ = select.select([self._read_end], [], [], timeout_s)
        if ready:
            os.read(self._read_end, 4096)
        return [self._received.popleft() for _ in range(len(self._received))]

    def wake(self) -> None:
        """End the wait from another thread."""
        os.write(self._write_end, b"\0")

    def __enter__(self) -> Self:
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        # A handler that only appends can interrupt anything, also a lock that it would need itself.
        for number in self._numbers:
            self._before[number] = signal.signal(number, lambda got, _: self._received.append(signal.Signals(got)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read_end)
        os.close(self._write_end)

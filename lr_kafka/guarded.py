"""A child process that never outlives this one, see `_guardian.py`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_GUARDIAN = Path(__file__).with_name("_guardian.py")


class GuardedProcess:
    """
    Runs `command` in a session of its own, its output appended to `log`.

    When this process is gone, however it ended, the command is killed and the folder `remove`, if given, deleted.
    """

    def __init__(self, command: Sequence[str], *, log: Path, remove: Path | None = None) -> None:
        with log.open("ab") as output:
            self._guardian = subprocess.Popen(
                [
                    # Isolated and without site: starts in 20 ms and depends on nothing that is installed.
                    *(sys.executable, "-I", "-S", str(_GUARDIAN)),
                    *(str(os.getpid()), str(remove or "")),
                    *command,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self.pid = 0
        assert self._guardian.stdout is not None
        try:
            self.pid = int(self._guardian.stdout.readline() or 0)
        except BaseException:
            # Interrupted before the guardian named its child: let go of it, and the guardian kills it.
            self._close()
            raise

    @property
    def running(self) -> bool:
        """Whether the command is still there (it may be stopped by a signal)."""
        return self._guardian.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command, if it is still there."""
        if self.running and self.pid:
            # It may end between the question and the signal.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self, timeout: float) -> None:
        """End it in order, also when it is frozen; what has not ended within `timeout` is killed."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            self._guardian.wait(timeout)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
        self._close()

    def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        if self.running and self.pid:
            # The command is ending. To let go of it before it has would be taken for our own end.
            self._guardian.wait()
        for pipe in (self._guardian.stdin, self._guardian.stdout):
            assert pipe is not None
            pipe.close()
        self._guardian.wait()

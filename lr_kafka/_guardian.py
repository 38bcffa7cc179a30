"""
Runs one command and sees to it that it never outlives the process that wanted it.

Started by path, as a script of its own (`lr_kafka.embedded`): standard library only, one thread. The owner holds the
other end of our stdin and never writes to it. When that end closes, however the owner ended, the command is killed.
A death signal set by the owner would not do: on Linux it is tied to the owner's *thread*, and macOS has none.

    _guardian.py OWNER_PID REMOVE COMMAND...

REMOVE is a folder to delete when the owner is gone without having cleaned up, or the empty string. The command's
process id is the one line on stdout; its output goes to our stderr. We end with the command's exit code.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def main(owner: int, remove: str, command: list[str]) -> int:
    """Run `command` until it ends by itself or its owner does."""
    # A byte arrives here when the command ends, so that we sleep until there is something to do.
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, preexec_fn=_die_with_parent())
    # Asked to end: the command gets the chance to end in order, and we follow it.
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    print(child.pid, flush=True)

    while child.poll() is None:
        # The owner's pid is looked at too: a process forked by the owner may hold the pipe open longer than it lives.
        readable, _, _ = select.select([0, woken], [], [], 1.0)
        if 0 in readable or os.getppid() != owner:
            child.kill()
            child.wait()
            if remove:
                shutil.rmtree(remove, ignore_errors=True)
        elif woken in readable:
            os.read(woken, 1024)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _die_with_parent() -> Callable[[], None] | None:
    """Where the kernel can do it, the command also dies when this guardian is killed. Safe here: we have no threads."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))

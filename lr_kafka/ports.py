"""Free ports for brokers that keep theirs while they are down."""

from __future__ import annotations

import random
import socket

from lr_wire.errors import SetupError

HOST = "127.0.0.1"

# Below the ranges from which Linux (32768 up) and macOS (49152 up) take the ports of outgoing connections: while a
# broker is down, a client that tries to reconnect could otherwise be given the broker's own port, and keep it.
_PORTS = range(15_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, and that no outgoing connection is given either."""
    free = [port for port in random.sample(_PORTS, 100) if is_free(port)]
    if len(free) < count:
        raise SetupError("no free port was found", hint="end programs that hold ports, then try again")
    return free[:count]


def is_free(port: int) -> bool:
    """Whether a broker could listen on it now."""
    with socket.socket() as probe:
        # As the broker does: a port in TIME_WAIT is free, one that is listened on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True

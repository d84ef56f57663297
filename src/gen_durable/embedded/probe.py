"""Check whether a server accepts connections, by the startup handshake of a client."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from gen_durable._db.sqlstates import CANNOT_CONNECT_NOW

__all__ = ["is_answering"]

# A healthy server replies within milliseconds; the caller tries again after a timeout.
_TIMEOUT_S = 2.0
_PROTOCOL_3_0 = 3 << 16
_TERMINATE = b"X\0\0\0\4"
# The code field of an error message: the server starts, recovers or shuts down.
_NOT_NOW = f"C{CANNOT_CONNECT_NOW}\0".encode()


def is_answering(path: Path) -> bool:
    """Whether a server accepts connections at this socket. An authentication error counts as well."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_S)
        try:
            connection.connect(str(path))
            connection.sendall(_startup(user="postgres", database="postgres"))
            # Read to the end of the handshake: the server would log an earlier disconnect.
            while True:
                kind, body = _message(connection)
                if kind == b"E":
                    return _NOT_NOW not in body
                if kind == b"Z":
                    connection.sendall(_TERMINATE)
                    return True
        except OSError:
            return False


def _startup(**parameters: str) -> bytes:
    pairs = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items()) + b"\0"
    return struct.pack("!ii", 8 + len(pairs), _PROTOCOL_3_0) + pairs


def _message(connection: socket.socket) -> tuple[bytes, bytes]:
    header = _exactly(connection, 5)
    kind, length = struct.unpack("!ci", header)
    return kind, _exactly(connection, length - 4)


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionResetError("the server closed the connection")
        received += chunk
    return received

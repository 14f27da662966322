"""Servers on this machine that answer as no server should."""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

CERTIFICATE = Path(__file__).with_name("test_server.pem")
"""With its private key, for 127.0.0.1 and judge.test; trusted by nobody but the tests."""

Behaviour = Callable[[socket.socket, threading.Event], None]
"""What is done on a connection; the event says that nobody waits for more."""


@contextlib.contextmanager
def hostile(behaviour: Behaviour, *, tls: bool = False) -> Iterator[int]:
    """Serve on a free port, every connection in a thread, for as long as the block runs.

    After 20 seconds all behaviours end, so that a client without a limit fails and does not hang.
    """
    over, threads = threading.Event(), []
    alarm = threading.Timer(20, over.set)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.settimeout(20)
            if not tls:
                behaviour(connection, over)
                return
            with context.wrap_socket(connection, server_side=True) as secure:
                behaviour(secure, over)

    def accept() -> None:
        with contextlib.suppress(OSError):  # closed below
            while True:
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=[connection]))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        alarm.start()
        try:
            yield listener.getsockname()[1]
        finally:
            alarm.cancel()
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            for thread in [accepting, *threads]:
                thread.join()


def hear(connection: socket.socket) -> None:
    """Read a request to its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16) or b"\r\n\r\n"
    head, _, body = data.partition(b"\r\n\r\n")
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    left = int(length[0].split(b":")[1]) - len(body) if length else 0
    while left > 0:
        left -= len(connection.recv(1 << 16)) or left


def says(content: bytes) -> Behaviour:
    """Answers with these bytes."""

    def behave(connection: socket.socket, over: threading.Event) -> None:
        hear(connection)
        connection.sendall(content)

    return behave


def falls_silent(content: bytes) -> Behaviour:
    """Sends these bytes, and then nothing."""

    def behave(connection: socket.socket, over: threading.Event) -> None:
        hear(connection)
        connection.sendall(content)
        over.wait()

    return behave


def drips(content: bytes, drop: bytes) -> Behaviour:
    """Sends these bytes, and then one byte of ``drop`` now and again."""

    def behave(connection: socket.socket, over: threading.Event) -> None:
        hear(connection)
        connection.sendall(content)
        while True:
            for byte in drop:
                if over.wait(0.1):
                    return
                connection.sendall(bytes([byte]))

    return behave


def floods(content: bytes, wave: bytes) -> Behaviour:
    """Sends these bytes, and then ``wave`` again and again."""

    def behave(connection: socket.socket, over: threading.Event) -> None:
        hear(connection)
        connection.sendall(content)
        while not over.is_set():
            connection.sendall(wave * (65536 // len(wave) + 1))

    return behave


def resets(content: bytes) -> Behaviour:
    """Sends these bytes and resets the connection."""

    def behave(connection: socket.socket, over: threading.Event) -> None:
        hear(connection)
        connection.sendall(content)
        over.wait(0.05)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return behave


def never_reads(connection: socket.socket, over: threading.Event) -> None:
    """Accepts and leaves it at that."""
    over.wait()


def response(
    body: bytes, *, status: str = "200 OK", headers: str = "", length: int | None = None
) -> bytes:
    """A response, with another length than its own if so wanted."""
    head = (
        f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body) if length is None else length}"
    )
    return head.encode() + b"\r\n\r\n" + body


def chunked(body: bytes) -> bytes:
    """The same in chunks, with an extension and a trailer."""
    middle = len(body) // 2
    parts = [body[:middle], body[middle:]]
    chunks = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in parts)
    return (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-End: 1\r\n\r\n"
    )

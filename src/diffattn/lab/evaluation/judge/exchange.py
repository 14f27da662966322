"""One HTTP request and its answer, within one limit of time and of size."""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

MOST_BYTES = 8 * 1024 * 1024
"""Largest answer."""
FAILURES = (OSError, ValueError, httpx2.HTTPError, httpx2.InvalidURL)
"""What :func:`exchange` raises where there is no whole answer."""

for _name in ("httpx2", "httpcore2"):
    # Below this level they log URLs and headers, which may hold a key.
    logging.getLogger(_name).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server."""

    status: int
    retry_after: str | None
    content: bytes


def exchange(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    seconds: float,
    tls: ssl.SSLContext,
    proxy: str | None = None,
) -> Answer:
    """``POST`` a body. Redirects are not followed: they would carry the key to another host.

    Args:
        url: Address of the server.
        headers: Added to those of every request.
        body: JSON.
        seconds: Limit for all of it: name look-up, connection, TLS, request and answer.
        tls: Certificates that are trusted.
        proxy: URL of the proxy. Default: none.

    Raises:
        FAILURES: There was no whole answer. The text may hold what the server sent.
    """
    headers = {
        "User-Agent": "diffattn",
        "Accept-Encoding": "identity",
        "Connection": "close",
        "Content-Type": "application/json",
        **headers,
    }

    async def post() -> Answer:
        # A limit of the client starts anew with every byte; this one does not.
        async with (
            asyncio.timeout(seconds),
            httpx2.AsyncClient(timeout=None, verify=tls, proxy=proxy, trust_env=False) as client,
            client.stream("POST", url, headers=headers, content=body) as response,
        ):
            content = bytearray()
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > MOST_BYTES:
                    raise OSError(f"the reply is longer than {MOST_BYTES} bytes")
            retry_after = response.headers.get("Retry-After")
            return Answer(response.status_code, retry_after, bytes(content))

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(post())
    finally:
        # A connection that is cancelled during TLS stays open, and closing takes one more step.
        for transport in list(getattr(loop, "_transports", {}).values()):
            transport.abort()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()  # unlike asyncio.run, it does not wait for the look-up of a name

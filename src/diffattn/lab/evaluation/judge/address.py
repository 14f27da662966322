"""URLs of an endpoint and its proxy, checked where they enter."""

import ipaddress
import re
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from diffattn.errors import ConfigError

_CHARACTERS = re.compile(r"[!-~]{1,2000}")
_PLACE = re.compile(
    r"([^@]*@)?(\[(?P<address>[\da-f:.]+)\]|(?=.{1,259}$)([\w-]{1,63}\.)*[\w-]{1,63}\.?)(:\d{1,5})?",
    re.ASCII | re.IGNORECASE,
)


def checked_url(name: str, text: Any, *schemes: str) -> SplitResult:
    """The parts of a URL that a request can be sent to.

    Args:
        name: Name of the setting, for messages.
        text: Its value. No message repeats it, since it may hold a key.
        schemes: Allowed schemes.

    Raises:
        ConfigError: The text is no URL with one of these schemes.
    """
    flaw = _flaw(text, schemes)
    if flaw:
        raise ConfigError(f"{name} must be a URL such as {schemes[-1]}://host/v1, got {flaw}.")
    return urlsplit(text)


def proxy_for(url: SplitResult) -> SplitResult | None:
    """The proxy that the environment names (``https_proxy``, ``no_proxy`` ...), if any.

    Raises:
        ConfigError: It does not speak HTTP.
    """
    proxy = getproxies().get(url.scheme)
    if not proxy or proxy_bypass(url.netloc):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    return checked_url(f"judge: the environment variable {url.scheme}_proxy", proxy, "http")


def login(url: SplitResult) -> str | None:
    """``user:password`` of a URL."""
    return f"{unquote(url.username)}:{unquote(url.password or '')}" if url.username else None


def _flaw(text: Any, schemes: tuple[str, ...]) -> str | None:
    if not isinstance(text, str) or not _CHARACTERS.fullmatch(text):
        return "other characters than printable ASCII (no spaces), or more than 2000"
    try:
        parts = urlsplit(text)
        place = _PLACE.fullmatch(parts.netloc)
        if place and place["address"]:
            ipaddress.IPv6Address(place["address"])
        sound = place is not None and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        return "a host or port that cannot be"
    return None if parts.scheme in schemes else "another scheme"

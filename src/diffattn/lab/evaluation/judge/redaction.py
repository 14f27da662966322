"""Take secrets out of a server's answer before any of it is cut, shown or recorded."""

import base64
import re
from collections.abc import Iterable, Iterator

_MARK = "[key]"
_WITHHELD = "[withheld: it repeats a part of the key or of the URL's query]"
_SHOWN, _READ = 300, 4096
_PIECE = 6
"""Characters of a secret in a row that no message shows. Four at the end of a text count too."""
_LONG_PIECE = 12
"""The same for a judge's reply, which may use the words of a key such as ``no-key-required``."""
_PLACEHOLDER = 8
"""A shorter key (``EMPTY``, as local servers want it) is replaced where it stands, no more."""
_RUN = re.compile(r"\\+")
_HEX = re.compile(r"(?:\\u00|\\x|%u00|%|=|&#x0{0,6})([0-9a-f]{2});?", re.IGNORECASE)
_DECIMAL = re.compile(r"&#0{0,6}([0-9]{2,3});?")
_HALF = re.compile(r"(?:\\(?:u0{0,2}|x)?|%(?:u0{0,2})?|=|&#?x?)[0-9a-f]{0,2}$", re.IGNORECASE)
"""An escape that the end of the text cuts."""


class Redaction:
    """Finds secrets as they are, in pieces, and in the usual encodings.

    This guards against servers that repeat their input, not against those that hide it on
    purpose: they can always spell it in another way. No part of a secret may pass; parts of a
    phrase, such as ``api-version=...``, may.
    """

    def __init__(self, secrets: Iterable[str], phrases: Iterable[str] = ()) -> None:
        secrets, phrases = set(secrets) - {""}, set(phrases) - {""}
        self._all = sorted(secrets | phrases, key=len, reverse=True)
        self._long = [text for text in self._all if len(text) >= _PLACEHOLDER]
        self._forms = {form for text in secrets & {*self._long} for form in _forms(text)}
        self._whole = {form for text in phrases & {*self._long} for form in _forms(text)}

    def message(self, text: str) -> str:
        """One line of at most 300 characters for an error, or a note that it is withheld."""
        text = _marked(text[:_READ], self._all)
        return _WITHHELD if self._shows(text, _PIECE) else " ".join(text.split())[:_SHOWN]

    def reply(self, text: str, piece: int = _LONG_PIECE) -> str | None:
        """A reply to be recorded, or ``None`` if it repeats a secret in another form."""
        text = _marked(text, self._long)
        return None if self._shows(text, piece) else text

    def name(self, text: str) -> str | None:
        """The same for the name of a model or of a reason to finish."""
        return self.reply(text[:_SHOWN], _PIECE)

    def _shows(self, text: str, size: int) -> bool:
        pieces = {piece for form in self._forms for piece in _windows(form, size)}
        whole = self._whole | {form for form in self._forms if len(form) < size}
        ends = {form[:count] for form in self._forms for count in range(max(4, size // 2), size)}
        return any(
            view.endswith(tuple(ends))
            or any(form in view for form in whole)
            or not pieces.isdisjoint(_windows(view, size))
            for view in (set(_views(text)) if pieces or whole else ())
        )


def _marked(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, _MARK)
    return text


def _windows(text: str, size: int) -> Iterator[str]:
    """Every so many characters in a row."""
    return (text[i : i + size] for i in range(len(text) - size + 1))


def _forms(secret: str) -> list[str]:
    """A secret as text, in hexadecimal, and in base64 behind any number of other bytes."""
    data = secret.encode()
    forms = [secret, data.hex()]
    for before, first in ((0, 0), (1, 2), (2, 3)):  # the characters that nothing else decides
        last = (before + len(data)) * 8 // 6
        forms.append(base64.b64encode(b"\0" * before + data).decode()[first:last])
    return [_level(form) for form in forms]


def _views(text: str) -> Iterator[str]:
    """The text, and the same after undoing one, two and three levels of escapes."""
    yield _level(text)
    for _ in range(3):
        text = _RUN.sub(r"\\", text)
        yield _level(_unescaped(text[:-9] + _HALF.sub("", text[-9:])))
        text = _unescaped(text)
        yield _level(text)


def _unescaped(text: str) -> str:
    text = _DECIMAL.sub(lambda match: chr(int(match[1])), text)
    text = _HEX.sub(lambda match: chr(int(match[1], 16)), text)
    return text.replace("\\", "").replace("&amp;", "&")


def _level(text: str) -> str:
    """The text without case, spaces and the second alphabet of base64."""
    return "".join(text.split()).casefold().replace("-", "+").replace("_", "/")

"""Text inside a page as few safe characters: gzip, then base 85."""

import base64
import gzip

# These would mean something to an HTML parser; the characters beside them are not in the alphabet.
_SAFE = str.maketrans({"<": ",", "&": ".", ">": ":"})


def pack_text(text: str) -> str:
    """Compress a text for an inert script element; ``unpack`` of ``loader.js`` is the inverse.

    Args:
        text: UTF-8 can encode it.
    """
    packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    return base64.b85encode(packed).decode().translate(_SAFE)

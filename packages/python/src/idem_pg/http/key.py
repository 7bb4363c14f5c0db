"""The header `Idempotency-Key` of draft-ietf-httpapi-idempotency-key-header.

Its value is a string of a structured field (RFC 9651), or the same text without quotes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .problem import Kind, Problem

HEADER = "idempotency-key"

LONGEST_BYTES = 255
"""The longest key: the name of the caller and the key together must fit into a message id."""

_ASCII = re.compile(r"[\t -~]*")
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_ESCAPE = re.compile(r"\\(.)")
_PARAMETER_NAME = re.compile(r"[a-z*][a-z0-9_.*-]*")
_PARAMETER_VALUE = re.compile(
    r"""-?\d{1,12}\.\d{1,3}(?!\d)                # decimal
      | -?\d{1,15}(?![.\d])                      # integer
      | "(?:[ !#-\[\]-~]|\\["\\])*"              # string
      | [A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*   # token
      | :(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2,3}={0,2})?:  # bytes
      | \?[01]                                   # boolean
      | @-?\d{1,15}(?![.\d])                     # date
      | %"(?:[ !#$&-~]|%[0-9a-f]{2})*"           # display string
    """,
    re.ASCII | re.VERBOSE,
)
_BARE = re.compile(r"[!#-+\--:<-\[\]-~]*")
_QUOTED_RULE = (
    "a key in quotes must be one string of printable ASCII characters, with a backslash before "
    "each quote and each backslash in it (RFC 9651)"
)


def key_of(values: Sequence[str]) -> str | None:
    """Returns the key, or None for a request without the header.

    `values` are the values of all headers with this name, with one character per byte. Raises
    Problem for an invalid key.
    """
    if not values:
        return None
    if len(values) > 1:
        raise _bad("it occurs more than once")
    return _parse(values[0])


def _parse(value: str) -> str:
    if _ASCII.fullmatch(value) is None:
        raise _bad("it contains characters that are not ASCII")
    text = value.strip(" \t")
    key = _quoted(text) if text.startswith('"') else _bare(text)
    if not key:
        raise _bad("it is empty")
    if len(key) > LONGEST_BYTES:
        raise _bad("it has more than 255 characters")
    return key


def _quoted(text: str) -> str:
    """Parses a key in quotes. Parameters are ignored, because the draft defines none."""
    string = _STRING.match(text)
    if string is None:
        raise _malformed("the string is not valid", _first_invalid(text))
    end = _after_parameters(text, string.end())
    if end < len(text):
        raise _malformed("trailing characters", end)
    return _ESCAPE.sub(r"\1", string[1])


def _first_invalid(text: str) -> int:
    """Returns the index of the character at which the string stops to be valid."""
    index = 1
    while index < len(text):
        if text[index] == "\\":
            if text[index + 1 : index + 2] not in ('"', "\\"):
                return index + 1
            index += 1
        elif not " " <= text[index] <= "~":
            return index
        index += 1
    return index


def _after_parameters(text: str, index: int) -> int:
    """Returns the index after the parameters and the spaces at the end."""
    while text[index : index + 1] == ";":
        index = _after_spaces(text, index + 1)
        name = _PARAMETER_NAME.match(text, index)
        if name is None:
            raise _malformed("the name of a parameter is expected", index)
        index = name.end()
        if text[index : index + 1] == "=":
            value = _PARAMETER_VALUE.match(text, index + 1)
            if value is None:
                raise _malformed("the value of a parameter is expected", index + 1)
            index = value.end()
    return _after_spaces(text, index)


def _after_spaces(text: str, index: int) -> int:
    while text[index : index + 1] == " ":
        index += 1
    return index


def _bare(text: str) -> str:
    """Parses a key without quotes, which many clients send."""
    if _BARE.fullmatch(text) is None:
        raise _bad(
            "a key without quotes must not contain spaces, quotes, backslashes, commas or "
            "semicolons"
        )
    return text


def _malformed(what: str, index: int) -> Problem:
    return _bad(f"{what} at index {index}; {_QUOTED_RULE}")


def _bad(reason: str) -> Problem:
    return Problem(Kind.BAD_KEY, f"the Idempotency-Key header is invalid: {reason}")

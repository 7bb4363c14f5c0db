"""Ids for calls of tools in frameworks that give no stable ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def tool_call_key(tool: str, arguments: Mapping[str, Any], occurrence: int) -> str:
    """Returns an id for a call whose own id changes when the model repeats the call.

    It is a hash of the name of the tool, the arguments and `occurrence`: how many equal calls the
    conversation had before this one, from 0. Use it as the id of a call, with the conversation as
    the scope. The arguments are JSON. The order of their keys does not matter, and a number without
    a fraction is the same as an integer (`500.0` and `500`). The package for Node.js returns the
    same keys, except for fractions below 0.0001 and integers above 2**53.
    """
    if occurrence < 0:
        raise ValueError("occurrence counts from 0")
    document = _canonical([tool, arguments, occurrence])
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Returns JSON with sorted keys, as RFC 8785 sorts them."""
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"a name in JSON is a text, not {name!r}")
        # JavaScript compares the units of UTF-16.
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return {name: _canonical(value[name]) for name in names}
    if isinstance(value, (list, tuple)):
        return [_canonical(element) for element in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value

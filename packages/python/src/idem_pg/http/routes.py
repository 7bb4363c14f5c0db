"""The routes that a middleware protects."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

Predicate = Callable[[Any], bool]
AppliesTo = Collection[str] | Predicate
Matcher = Callable[[str, Any], bool]


def matcher_of(applies_to: AppliesTo) -> Matcher:
    """Returns a function that gets the path and the request. Raises TypeError or ValueError."""
    if callable(applies_to):
        return _by_predicate(applies_to)
    if isinstance(applies_to, str) or not isinstance(applies_to, Collection):
        raise TypeError("applies_to must be a function or a collection of patterns, not one text")
    patterns = list(applies_to)
    if not patterns or not all(isinstance(text, str) and text.startswith("/") for text in patterns):
        raise ValueError('applies_to needs patterns that begin with a slash, such as "/orders"')
    any_of = "|".join(re.escape(text).replace(r"\*", ".*") for text in patterns)
    expression = re.compile(any_of, re.DOTALL)
    return lambda path, _: expression.fullmatch(path) is not None


def _by_predicate(predicate: Predicate) -> Matcher:
    def matches(_path: str, request: Any) -> bool:
        found: object = predicate(request)
        if not isinstance(found, bool):
            # A coroutine, for example, would be true for each request.
            raise TypeError("the function applies_to must return True or False")
        return found

    return matches

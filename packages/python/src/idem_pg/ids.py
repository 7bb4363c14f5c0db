"""Ids of messages."""

from __future__ import annotations

from uuid import UUID

MessageId = str | UUID | int
"""The sender's message id or a business id. An integer is the text of its digits."""


def id_text(message_id: MessageId) -> str:
    """Returns an id as text. Raises TypeError for a value that is no id, for example None."""
    if isinstance(message_id, bool) or not isinstance(message_id, (str, UUID, int)):
        raise TypeError(f"a message id is a str, a UUID or an int, not {message_id!r}")
    # str() of an enum is the name of its member.
    return str.__str__(message_id) if isinstance(message_id, str) else str(message_id)


def scoped_id(scope: str | None, message_id: MessageId) -> str:
    """Returns the message id of an id in its scope. None: the id is unique everywhere.

    Ids of HTTP requests have the same form. Raises ValueError for a scope that is empty or that
    PostgreSQL cannot store.
    """
    # The id begins with the kind of the scope, so an id without a scope equals none with one.
    if scope is None:
        return f"all:{id_text(message_id)}"
    if not scope or "\0" in scope or any("\ud800" <= char <= "\udfff" for char in scope):
        raise ValueError(f"a scope is a text that PostgreSQL can store, not {scope!r}")
    # The length distinguishes scope "a" with id "b:c" from scope "a:b" with id "c".
    return f"by:{len(scope.encode())}:{scope}:{id_text(message_id)}"

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

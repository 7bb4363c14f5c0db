"""The package idem-pg over psycopg, in autocommit mode.

A statement that is the call of one function is executed by the method of the package, and its
result is converted back to rows. `SELECT method_calls` returns how many statements these are.
Every other statement is executed by psycopg, and its error is translated by the package.
"""

import datetime as dt
import json
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from protocol import Json, Refusal

from idem_pg import Dead, Duplicate, Effect, Exhausted, Held, Idem, IdemError, InProgress, executors

CALL = re.compile(
    r"SELECT (?:(?P<columns>[\w, *:]+) FROM )?(?P<function>idem_\w+)\((?P<arguments>.*)\)"
)
ARGUMENT = re.compile(
    r"(?:(?P<name>\w+) => )?(?:\$(?P<number>\d+)(?P<uuid>::uuid)?|(?P<word>true|false|\d+))"
)
COLUMN = re.compile(r"(\w+)(?:::text)?")

ID = ["id", "destination"]
HELD = [*ID, "token"]
CONTENT = ["headers", "key", "type", "content_type"]

# The names of the arguments of each function, in their order.
PARAMETERS = {
    "idem_try_claim": ID,
    "idem_is_claimed": ID,
    "idem_try_claim_batch": ["ids", "destination"],
    "idem_claim": [*ID, "wait", "fingerprint", "sent_at"],
    "idem_record_effects": [*ID, "effects"],
    "idem_try_record": [*ID, "effects"],
    "idem_effects": ID,
    "idem_send": ["topic", "payload", "key", "type", "headers", "message_id", "content_type"],
    "idem_acquire": [*ID, "lease"],
    "idem_extend": [*HELD, "lease"],
    "idem_complete": [*HELD, "effects"],
    "idem_release": [*HELD, "error", "final"],
    "idem_bury": [*HELD, "payload", "error", *CONTENT],
    "idem_receive": [*ID, "payload", "headers", "key", "deliver_after", "type", "content_type"],
    "idem_next": ["destination", "max_messages", "lease", "max_bytes"],
    "idem_next_wait": ["destination", "timeout_ms"],
    "idem_reject": [*ID, "payload", "error", *CONTENT, "source"],
    "idem_begin_call": [*ID, "step", "request", "token"],
    "idem_finish_call": [*ID, "step", "response"],
    "idem_fail_call": [*ID, "step", "error", "retryable"],
    "idem_calls": ID,
}

METHODS = {"idem_record_effects": "record"}

VOID = {"idem_extend", "idem_bury", "idem_finish_call", "idem_fail_call"}
# The functions with rows. Without columns, the statement returns them as texts of composite values.
ROWS = {
    "idem_claim",
    "idem_effects",
    "idem_acquire",
    "idem_next",
    "idem_begin_call",
    "idem_calls",
}


class Untranslated(Exception):
    """The statement is not the call of a method with values of its types."""


class IdemSession:
    method_calls = 0

    def __init__(self) -> None:
        self.connection = psycopg.connect(autocommit=True)
        self.idem = Idem(self.connection)

    def execute(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        if sql == "SELECT method_calls":
            return [[IdemSession.method_calls]]
        try:
            call = translated(sql, arguments)
        except Untranslated:
            return self.run(sql, arguments)
        IdemSession.method_calls += 1
        try:
            return call(self.idem)
        except IdemError as error:
            raise Refusal(error.sqlstate, error.hint, str(error)) from error

    def run(self, sql: str, arguments: Sequence[Any]) -> list[list[Any]]:
        """Executes a statement as it is. The errors are those of the package."""
        # A parameter can occur more than once, and in any order.
        numbers = [int(number) for number in re.findall(r"\$(\d+)", sql)]
        text = re.sub(r"\$\d+", "%s", sql.replace("%", "%%"))
        values = [parameter(arguments[number - 1]) for number in numbers]
        try:
            cursor = self.connection.execute(text, values)
        except psycopg.Error as error:
            found = error_of(error)
            raise Refusal(found.sqlstate, found.hint, str(found)) from error
        if cursor.description is None:
            return []
        return [[value_of(value) for value in row] for row in cursor]

    def close(self) -> None:
        self.connection.close()


def error_of(error: Exception) -> IdemError:
    found = executors.translated(error)
    if not isinstance(found, IdemError):
        raise TypeError("the package does not know this error") from error
    return found


def value_of(value: Any) -> Any:
    return Json(value) if isinstance(value, dict) else value


def parameter(value: Any) -> Any:
    return json.dumps(value.value) if isinstance(value, Json) else value


def translated(sql: str, values: Sequence[Any]) -> Callable[[Idem], list[list[Any]]]:
    """Returns the call of a method, as a function that returns the rows of the statement."""
    call = CALL.fullmatch(sql)
    if call is None or call["function"] not in PARAMETERS or call["columns"] == "*":
        raise Untranslated
    function, columns = call["function"], call["columns"]
    if columns is None and function in ROWS:
        raise Untranslated
    if columns is not None and not all(map(COLUMN.fullmatch, columns.split(", "))):
        raise Untranslated
    arguments = named(PARAMETERS[function], call["arguments"], values)
    method = METHODS.get(function, function.removeprefix("idem_"))
    options = converted(function, arguments)

    def execute(idem: Idem) -> list[list[Any]]:
        result = getattr(idem, method)(**options)
        if columns is None:
            return [["" if result is None and function in VOID else result]]
        rows = result if isinstance(result, list) else [result]
        return [[column_of(row, column) for column in columns.split(", ")] for row in rows]

    return execute


def named(parameters: Sequence[str], text: str, values: Sequence[Any]) -> dict[str, Any]:
    found = {}
    for position, part in enumerate(text.split(", ") if text else []):
        argument = ARGUMENT.fullmatch(part)
        if argument is None or (argument["name"] is None and position >= len(parameters)):
            raise Untranslated
        name = argument["name"] or parameters[position]
        if argument["word"] is not None:
            found[name] = {"true": True, "false": False}.get(argument["word"])
            if found[name] is None:
                found[name] = int(argument["word"])
        else:
            value = values[int(argument["number"]) - 1]
            found[name] = uuid.UUID(value) if argument["uuid"] else value
    # The methods have no parameter that can be NULL and has no default.
    if any(
        value is None or (isinstance(value, list) and None in value) for value in found.values()
    ):
        raise Untranslated
    return found


def converted(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the method."""
    options = dict(arguments)
    if isinstance(options.get("lease"), str):
        options["lease"] = duration(options["lease"])
    for name in ("sent_at", "deliver_after"):
        if isinstance(options.get(name), str):
            options[name] = time_of(options[name])
    for name in ("payload", "headers", "request", "response"):
        if name in options and isinstance(options[name], Json):
            options[name] = options[name].value
        elif name in options and not (name == "payload" and isinstance(options[name], bytes)):
            raise Untranslated
    if function in ("idem_bury", "idem_reject") and not isinstance(options["payload"], bytes):
        raise Untranslated
    if not isinstance(options.get("headers", {}), dict):
        raise Untranslated
    if "message_id" in options:
        options["message_id"] = uuid.UUID(options["message_id"])
    if "effects" in options:
        options["effects"] = effects_of(options["effects"])
    if function == "idem_send":
        return {"effect": Effect(**options)}
    if function in ("idem_extend", "idem_complete", "idem_release", "idem_bury"):
        lease = options.pop("lease", dt.timedelta(seconds=30))
        held = Held(*(options.pop(name) for name in HELD), 1, None, lease, 0.0)
        return {"held": held} | options
    if "id" in options:
        options["message_id"] = options.pop("id")
    return options


def duration(text: str) -> dt.timedelta:
    number, _, unit = text.partition(" ")
    if unit.rstrip("s") not in ("millisecond", "second", "minute", "hour", "day"):
        raise Untranslated
    return dt.timedelta(**{unit.rstrip("s") + "s": float(number)})


def effects_of(value: Any) -> Any:
    document = value.value if isinstance(value, Json) else None
    members = [document] if isinstance(document, dict) else document
    if not isinstance(members, list):
        raise Untranslated
    return [effect_of(member) for member in members]


def effect_of(members: Any) -> Effect:
    if not isinstance(members, dict) or not isinstance(members.get("headers", {}), dict):
        raise Untranslated
    time = members.get("deliver_after")
    try:
        if time is not None:
            members = members | {"deliver_after": time_of(time)}
        return Effect(**members)
    except TypeError as error:
        raise Untranslated from error


def time_of(text: Any) -> dt.datetime:
    try:
        time = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except (ValueError, AttributeError) as error:
        raise Untranslated from error
    if time.tzinfo is None:
        raise Untranslated
    return time


def column_of(row: Any, column: str) -> Any:
    """Returns a column of a row from the value of the package."""
    name = column.removesuffix("::text")
    if name == "outcome":
        return outcome_name(row)
    if isinstance(row, Exhausted):
        row = row.held
    if not hasattr(row, name) and hasattr(row, "held"):
        row = row.held
    value = getattr(row, {"id": "message_id"}.get(name, name), None)
    return Json(value) if name in ("headers", "response") and value is not None else value


def outcome_name(outcome: Any) -> str:
    names = {Held: "acquired", InProgress: "in_progress", Duplicate: "duplicate", Dead: "dead"}
    return names.get(type(outcome), type(outcome).__name__.lower())


connect = IdemSession

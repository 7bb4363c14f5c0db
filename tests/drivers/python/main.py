"""Executes statements with one driver: `python main.py <driver>`.

Reads requests from the standard input, one JSON object on each line, and writes one reply on a line
for each of them. tests/drivers/README.md describes both. Connects as the variables PGHOST, PGPORT,
PGUSER and PGDATABASE define.
"""

import base64
import importlib
import json
import sys
import uuid
from typing import Any

from protocol import Json, Refusal, Session


def argument(value: Any) -> Any:
    """Returns an argument of a request as a value of Python."""
    match value:
        case {"bytes": text}:
            return base64.b64decode(text)
        case {"json": document}:
            return Json(document)
        case _:
            return value


def cell(value: Any) -> Any:
    """Returns a value of a result as it is written in a reply."""
    match value:
        case None | bool() | int() | str():
            return value
        case uuid.UUID():
            return str(value)
        case bytes() | memoryview():
            return {"bytes": base64.b64encode(value).decode()}
        case list():
            return [cell(element) for element in value]
        case Json(document):
            return {"json": document}
        case _:
            raise TypeError(f"cast this column to text in the SQL: {value!r}")


def reply(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    arguments = [argument(value) for value in request["arguments"]]
    try:
        rows = session.execute(request["sql"], arguments)
    except Refusal as refusal:
        error = {"sqlstate": refusal.sqlstate, "hint": refusal.hint, "message": refusal.message}
        return {"error": error}
    return {"rows": [[cell(value) for value in row] for row in rows]}


def main(driver: str) -> None:
    connect = importlib.import_module(f"drivers.{driver}").connect
    sessions: dict[str, Session] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "sql" in request:
            name = request["session"]
            if name not in sessions:
                sessions[name] = connect()
            answer = reply(sessions[name], request)
        else:
            for session in sessions.values():
                session.close()
            sessions.clear()
            answer = {}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Writes the modules for asyncio from those without, so that both have the same functions.

`python make_async.py --check` fails if a module is out of date.
"""

import re
import subprocess
import sys
from pathlib import Path

SETTINGS = Path(__file__).parent / "pyproject.toml"
PACKAGE = Path(__file__).parent / "src/idem_pg"

COMMON = [
    (
        r"\n\n`make_async.py` writes `.*?` from this file.\n\"\"\"",
        '"""\n\n# make_async.py writes this file.',
    ),
    (r"\bIdem\b", "AsyncIdem"),
]


def waiting(plain: str) -> tuple[str, str]:
    """Returns the replacement that makes all functions asynchronous, except those in `plain`."""
    return (rf"( +|^)def (?!(?:{plain})\b)", r"\1async def ")


IDEM = [
    waiting("__init__"),
    (r"import executor, run\b", "import async_executor, run_async"),
    (r"= executor\(", "= async_executor("),
    (
        r"Accepts a connection or\n    cursor of psycopg, .*?\.\n",
        "Accepts a connection of\n    asyncpg, an AsyncConnection or AsyncCursor of psycopg, and "
        "an AsyncConnection or AsyncSession\n    of SQLAlchemy.\n",
    ),
    (r"return run\(", "return await run_async("),
    (r"return self\.run\(", "return await self.run("),
]

# What modules have in common that run short transactions.
SHORT_TRANSACTIONS = [
    (r"from (\.+)idem import", r"from \1async_idem import"),
    (r"\b(Lease|Query|Renewal|Transactions)\b", r"Async\1"),
    (r"\b(short_transaction|transactions)\b(?=[(,`]|$)", r"async_\1"),
    (r"((?:return|=) |^ +)(idem\.|async_short_transaction\()", r"\1await \2"),
]

# What modules have in common that get functions of the user.
OPENING = [
    (r"collections.abc import ", "collections.abc import Awaitable, Coroutine, "),
    *SHORT_TRANSACTIONS,
]

LEASE = [
    waiting("__init__|record|give_back|is_lost|_or_lost"),
    *OPENING,
    (r"from \.renewal import", "from .async_renewal import"),
    (r"\blease\(", "async_lease("),
    (r"the `with` block", "the `async with` block"),
    (r"call: Callable\[\[str\], Any\]", "call: Callable[[str], Awaitable[Any]]"),
    (r"work: Callable\[\[AsyncIdem\], Any\]", "work: Callable[[AsyncIdem], Awaitable[Any]]"),
    (r"\bself\.(_run|_begin|_finish|_fail|_end|_complete|_release|once)\(", r"await self.\1("),
    (r"self\._renewal\.uninterrupted", "await self._renewal.uninterrupted"),
    (r"(return|=) (call\(|on_unknown\(|AsyncIdem\(connection)", r"\1 await \2"),
    (r"__(enter|exit)__", r"__a\1__"),
]

TOOLS = [
    waiting("once|decorate"),
    *OPENING,
    (r"from \.lease import AsyncLease, lease", "from .async_lease import AsyncLease, async_lease"),
    (r"= lease\(", "= await async_lease("),
    (r"def once", "def async_once"),
    (r"return (_recorded|leased\.once|function)\(", r"return await \1("),
    (r"        with leased:", "        async with leased:"),
    (r"Callable\[P, T\]", "Callable[P, Coroutine[Any, Any, T]]"),
    (r"is_asynchronous=False", "is_asynchronous=True"),
    (r"    _give_up\(", "    await _give_up("),
]

ATTEMPT = [
    waiting("__init__"),
    *SHORT_TRANSACTIONS,
    (r"\bAttempt\b", "AsyncAttempt"),
    (r"\bself\.(_found|_replayed)\(", r"await self.\1("),
]

LEASED = [
    waiting("__init__|is_lost|status_of|recorded_of|response_of|note_record"),
    (r"\bLeased?(Attempt|Handler)\b", r"Async\g<0>"),
    *OPENING,
    (
        r"from \.\.lease import AsyncLease, lease",
        "from ..async_lease import AsyncLease, async_lease",
    ),
    (r"from \.attempt import Attempt", "from .async_attempt import AsyncAttempt"),
    (r"\(Attempt\[", "(AsyncAttempt["),
    (r"= lease\(", "= await async_lease("),
    (r"call: Callable\[\[str\], Any\]", "call: Callable[[str], Awaitable[Any]]"),
    (r"\bretried\b", "async_retried"),
    (r" with (acquired|self\._open\(\))", r" async with \1"),
    (
        r"\bself\.(_not_acquired|_bind_key|_handled|_complete|_after_loss|_found|_replayed"
        r"|_lease\.once|_handler\.run|_handler\.stop)\(",
        r"await self.\1(",
    ),
    (r"^( +)(acquired\.complete|AsyncIdem|async_retried)\(", r"\1await \2("),
]

MODULES = {
    "idem.py": IDEM,
    "lease.py": LEASE,
    "tools.py": TOOLS,
    "http/attempt.py": ATTEMPT,
    "http/leased.py": LEASED,
}


def converted(name: str, text: str) -> str:
    for pattern, replacement in COMMON + MODULES[name]:
        text, count = re.subn(pattern, replacement, text, flags=re.DOTALL | re.MULTILINE)
        if count == 0:
            raise SystemExit(f"{name} has no match for {pattern}")
    for arguments in (["check", "--fix", "--exit-zero", "--quiet"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *arguments]
        command += ["--config", str(SETTINGS), "--stdin-filename", name, "-"]
        text = subprocess.run(
            command, input=text, capture_output=True, check=True, text=True, cwd=PACKAGE
        ).stdout
    return text


def main() -> None:
    for name in MODULES:
        source = PACKAGE / name
        target = source.with_name(f"async_{source.name}")
        text = converted(name, source.read_text())
        if "--check" not in sys.argv:
            target.write_text(text)
        elif target.read_text() != text:
            raise SystemExit(f"{target.name} is out of date: run make_async.py")


if __name__ == "__main__":
    main()

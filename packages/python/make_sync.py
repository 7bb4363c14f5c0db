"""Writes the modules without asyncio: `python make_sync.py src/idem_pg`.

The module `async_x.py` becomes `x.py`, and a name `async_x` or `AsyncX` in it becomes `x` or `X`.
"""

import re
import subprocess
import sys
from pathlib import Path

import unasync

MODULES = ["idem", "lease", "tools", "http/attempt", "http/leased"]
SETTINGS = Path(__file__).with_name("pyproject.toml")

package = Path(sys.argv[1])
for module in MODULES:
    target = package / f"{module}.py"
    source = target.with_name(f"async_{target.name}")
    names = re.findall(r"\b(?:async_|Async)\w+", source.read_text())
    shorter = {name: re.sub("async_|Async", "", name, count=1) for name in names}
    rule = unasync.Rule(f"/{source.name}", f"/{target.name}", shorter)
    unasync.unasync_files([str(source)], [rule])
    for command in (["check", "--fix", "--select=I,F401"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--no-cache", "--config"]
        subprocess.run([*ruff, SETTINGS, target], check=True)

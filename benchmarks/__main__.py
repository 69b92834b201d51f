"""`python -m benchmarks NAME`."""

import sys

from attnflow.errors import InputError
from benchmarks.commands import app

try:
    app(prog_name="python -m benchmarks")
except InputError as e:
    print(f"benchmarks: {e}", file=sys.stderr)
    sys.exit(2)

"""Middleware that makes each HTTP request with an `Idempotency-Key` take effect once.

This package contains the ASGI middleware. `idem_pg.http.django` contains that of Django.
"""

from .asgi import IdempotencyMiddleware
from .leased import RequestLease, request_lease
from .options import Options
from .request_transaction import RequestTransaction, keep_writes, request_transaction
from .running import RunningRequests
from .scope import Scope

__all__ = [
    "IdempotencyMiddleware",
    "Options",
    "RequestLease",
    "RequestTransaction",
    "RunningRequests",
    "Scope",
    "keep_writes",
    "request_lease",
    "request_transaction",
]

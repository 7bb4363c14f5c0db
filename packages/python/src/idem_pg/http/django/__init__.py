"""A Django middleware that makes each request with an `Idempotency-Key` take effect once.

    class OrderKeys(IdempotencyMiddleware):
        destination = "shop.place-order"
        scope = Scope.by(lambda request: request.user.get_username() or None)
        applies_to = ("/orders", "/payments/*")

Name the subclass in MIDDLEWARE, below the middleware that authenticates. The middleware itself can
be used with the setting IDEM_HTTP, a dict with the names of the class attributes in capitals:
`IDEM_HTTP = {"DESTINATION": "shop.place-order", "SCOPE": "shop.keys.SCOPE", "APPLIES_TO":
["/orders"]}`. `idempotent_view` protects one view without a middleware.

The view runs in `transaction.atomic(durable=True)` of the connection `using`, and in a savepoint.
`request_transaction(request).connection` is that connection. With `mode = "lease"` the view runs
under a lease and in no transaction, for work that cannot share one: see `request_lease`.
docs/http.md says what differs from the crate `idem-http`.
"""

from ..request_transaction import RequestTransaction, keep_writes, request_transaction
from .decorator import idempotent_view
from .middleware import IdempotencyMiddleware
from .view import RequestLease, request_lease

__all__ = [
    "IdempotencyMiddleware",
    "RequestLease",
    "RequestTransaction",
    "idempotent_view",
    "keep_writes",
    "request_lease",
    "request_transaction",
]

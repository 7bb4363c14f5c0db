"""idem for Python: process each message once, in the transaction that you have."""

from .async_lease import AsyncLease, async_lease
from .async_process import Processed, async_process
from .async_tools import async_once
from .effects import Effect, RecordedEffect
from .errors import IdemError, LeaseLostError, LeaseNotCompletedError
from .external_calls import Begun, ExternalCall
from .handlers import idempotent
from .idem import AsyncIdem, Idem
from .ids import MessageId
from .lease import Lease, lease
from .leases import Acquired, Exhausted, Held
from .messages import ReceivedMessage
from .once import (
    CallNotDoneError,
    CallRefusedError,
    Found,
    OnUnknown,
    UnknownCall,
    UnknownResultError,
)
from .outcomes import (
    Claimed,
    Dead,
    Duplicate,
    Expired,
    InProgress,
    Mismatch,
    Outcome,
    Settlement,
)
from .process import process
from .tool_keys import tool_call_key
from .tool_rules import ToolBusyError, ToolFailedError
from .tools import once
from .transactions import async_transactions, transactions

__all__ = [
    "Acquired",
    "AsyncIdem",
    "AsyncLease",
    "Begun",
    "CallNotDoneError",
    "CallRefusedError",
    "Claimed",
    "Dead",
    "Duplicate",
    "Effect",
    "Exhausted",
    "Expired",
    "ExternalCall",
    "Found",
    "Held",
    "Idem",
    "IdemError",
    "InProgress",
    "Lease",
    "LeaseLostError",
    "LeaseNotCompletedError",
    "MessageId",
    "Mismatch",
    "OnUnknown",
    "Outcome",
    "Processed",
    "ReceivedMessage",
    "RecordedEffect",
    "Settlement",
    "ToolBusyError",
    "ToolFailedError",
    "UnknownCall",
    "UnknownResultError",
    "async_lease",
    "async_once",
    "async_process",
    "async_transactions",
    "idempotent",
    "lease",
    "once",
    "process",
    "tool_call_key",
    "transactions",
]

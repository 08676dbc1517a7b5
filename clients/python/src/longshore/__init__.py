"""Submit and run jobs of Longshore, a job queue on NATS JetStream."""
from ._client import ApiError, Client
from ._context import Context
from ._errors import Cancelled, Detach, Permanent, Retry, Snooze
from ._worker import Worker

__all__ = ["ApiError", "Cancelled", "Client", "Context", "Detach", "Permanent", "Retry", "Snooze", "Worker"]

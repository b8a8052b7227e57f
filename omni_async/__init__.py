"""Asyncio-native transports between the stages of omni-modality serving.

In: values. Out: the same values in another process.
Never: imports torch or zmq before somebody needs them.
"""

from __future__ import annotations

from .codec import register_type
from .errors import *  # noqa: F403 - the whole tree is public
from .errors import __all__ as _error_names
from .model import Capabilities, ConnectorSpec, EdgeName, Health, Receipt
from .transport import DEFAULT, Delivery, Edge, Transport, open_transport

__version__ = "0.1.0"

__all__ = [
    "DEFAULT",
    "Capabilities",
    "ConnectorSpec",
    "Delivery",
    "Edge",
    "EdgeName",
    "Health",
    "Receipt",
    "Transport",
    "__version__",
    "open_transport",
    "register_type",
    *_error_names,
]

"""The promises of a transport as tests that every backend runs.

A backend's test file says which connector it is about, and that is all::

    from omni_async.testing.conformance import TransportConformance


    class TestMine(TransportConformance):
        connector = "MyConnector"

        def extra(self, role):
            return {"device": "lo"}
"""

from __future__ import annotations

import pkgutil

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{m.name}" for m in pkgutil.iter_modules(__path__)))

from .suite import TransportConformance  # noqa: E402 - after its asserts were made to talk

__all__ = ["TransportConformance"]

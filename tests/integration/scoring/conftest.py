"""Pairs whose target is on a fake engine, and the real one that the embedded server wraps."""

from __future__ import annotations

from tests.support.own_places import places as places

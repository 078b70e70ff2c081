"""Live engines: what is measured of them is kept apart from the user's."""

from __future__ import annotations

from tests.support.own_places import places as places

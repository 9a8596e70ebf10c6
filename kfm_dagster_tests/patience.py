"""How long a test waits for whole processes of its own. It ends what hangs; it measures nothing, so it is generous."""

from __future__ import annotations

HANG_SECONDS = 1500
"""Several times what the slowest deployment takes on two processors with the rest of the tests beside it."""

"""The verdict on a message's sender, as intake, message-parse and the ledger share it.

Does not belong here: reaching it (`authenticity.py`), for which the cryptography is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique


@unique
class Authenticity(StrEnum):
    """What is known of a message's sender."""

    VERIFIED = "verified"
    """Its topic signed it."""
    INVALID = "invalid"
    """Nobody signed it, or not what it says."""
    UNCHECKED = "unchecked"
    """The settings ask for no signature, or it holds nothing that could be signed, and message-parse says why."""
    UNKNOWN = "unknown"
    """Its certificate cannot be fetched now; it is asked again when the message comes again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SenderVerdict:
    """What is known of one message's sender, and why it is not what the message says."""

    authenticity: Authenticity
    detail: str = ""


UNCHECKED = SenderVerdict(authenticity=Authenticity.UNCHECKED)
VERIFIED = SenderVerdict(authenticity=Authenticity.VERIFIED)

"""The NODD WAL: the status and the history of every object.

`Ledger` claims, settles and queries units; `Deliveries` has the messages, `QuarantineCases` the cases for a person.
"""

from kfm_dagster.ledger.cases import CaseState, QuarantineCase, QuarantineCases
from kfm_dagster.ledger.deliveries import Deliveries, Delivery, DeliveryState
from kfm_dagster.ledger.policy import LedgerCode, ReplayReason
from kfm_dagster.ledger.record import HistoryEntry, NoddWalRecord, replay_history
from kfm_dagster.ledger.rejections import IgnoredRecord, Rejection
from kfm_dagster.ledger.reports import (
    DayReport,
    EnsureResult,
    FailingUnit,
    MoveCount,
    PendingPartition,
    RecoverReport,
    SettleReport,
)
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger

__all__ = [
    "CaseState",
    "DayReport",
    "Deliveries",
    "Delivery",
    "DeliveryState",
    "EnsureResult",
    "FailingUnit",
    "HistoryEntry",
    "IgnoredRecord",
    "Ledger",
    "LedgerCode",
    "MoveCount",
    "NoddWalRecord",
    "PendingPartition",
    "QuarantineCase",
    "QuarantineCases",
    "RecoverReport",
    "Rejection",
    "ReplayReason",
    "SettleReport",
    "Status",
    "replay_history",
]

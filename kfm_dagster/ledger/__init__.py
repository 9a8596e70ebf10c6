"""The NODD WAL: the status and the history of every object.

`Ledger` claims, settles and queries units. `Deliveries` records messages, `QuarantineCases` the cases for a person.
"""

from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.deliveries import Deliveries
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger

__all__ = ["Deliveries", "Ledger", "NoddWalRecord", "QuarantineCases", "Status"]

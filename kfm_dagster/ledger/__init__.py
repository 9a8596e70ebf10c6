"""The NODD WAL: the status and the history of every object.

`Ledger` claims, settles and queries units; `Deliveries` has the messages, `QuarantineCases` the cases for a person.
"""

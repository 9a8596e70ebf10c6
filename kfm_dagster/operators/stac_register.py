"""stac-register: build the Items of envelopes that passed, and register the batch.

The only operator that writes the catalog. `stac_register` is pure; `stac_register_batch` hands its candidates to
`catalog.store.Catalog`, which decides between created, updated and no-op.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kfm_dagster.catalog.item import Candidate, NoItemError, build_candidate
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import CheckStatus, Envelope, StacResult, StacStatus
from kfm_dagster.contracts.issues import Issue, Severity, StacIssue
from kfm_dagster.contracts.key_grammar import InvalidKeyTimeError, KeyGrammarReader
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import KfmError
from kfm_dagster.redaction import redacted_error
from kfm_dagster.storage.fence import Fence

_LOG = logging.getLogger(__name__)
_PASSED = frozenset({CheckStatus.OK, CheckStatus.SUSPECT})


def may_register(envelope: Envelope) -> bool:
    """Return whether no operator, gate or governance rule failed the unit; `suspect` passes."""
    return (
        envelope.failure is None
        and envelope.integrity is not None
        and envelope.integrity.status in _PASSED
        and envelope.metadata is not None
        and envelope.metadata.status in _PASSED
    )


def stac_register(
    envelope: Envelope,
    *,
    contract: DatasetContract,
    grammar: KeyGrammarReader,
    run_state: Mapping[str, str] | None = None,
) -> Candidate:
    """Build the Item of an envelope. Raises NoItemError.

    run_state is {dataset_id, run_id} of the registering node.
    """
    try:
        match = grammar.match(envelope.key)
    except InvalidKeyTimeError as error:
        raise NoItemError(f"the key gives no Item id: {error}") from None
    if match is None:
        raise NoItemError("the key gives no Item id: it does not match the contract's key grammar")
    return build_candidate(envelope, contract=contract, match=match, run_state=run_state)


def stac_register_batch(
    envelopes: Sequence[Envelope],
    *,
    contract: DatasetContract,
    grammar: KeyGrammarReader,
    catalog: Catalog,
    fence: Fence,
    run_state: Mapping[str, str] | None = None,
) -> list[Envelope]:
    """Register a dataset's batch; return it with `stac` on each envelope that passed.

    An envelope that failed before is returned unchanged and is not registered. `fence` checks, in the writing
    transaction, which claims are still valid.
    """
    enriched = list(envelopes)
    candidates: dict[int, Candidate] = {}
    for position, envelope in enumerate(envelopes):
        if may_register(envelope):
            try:
                candidates[position] = stac_register(envelope, contract=contract, grammar=grammar, run_state=run_state)
            except NoItemError as error:
                enriched[position] = envelope.evolve(stac=_no_item(str(error)))
            except KfmError:  # a fault of contract or catalog concerns every unit
                raise
            except Exception as error:  # a fault of this unit; other units continue
                _LOG.exception("no Item of %s", envelope.wal_id, exc_info=redacted_error(error))
                enriched[position] = envelope.evolve(stac=_no_item(f"building the Item raised {type(error).__name__}"))
    results = catalog.register(list(candidates.values()), fence=fence)
    for position, result in zip(candidates, results, strict=True):
        enriched[position] = envelopes[position].evolve(stac=result)
    return enriched


def _no_item(message: str) -> StacResult:
    issue = Issue(code=StacIssue.STAC_VALIDATION_FAILED, severity=Severity.FAILED, message=message)
    return StacResult(write_status=StacStatus.FAILED, issues=(issue,))

"""Each content is applied once: skips, checkpoints, versions, and two concurrent workers."""

from __future__ import annotations

import importlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import count, pairwise

import pytest
import sqlalchemy as sa

from kfm_dagster.idempotent_node.node import content_of, run_node
from kfm_dagster.idempotent_node.transaction import Effect, IdempotentNodes, NodeResult
from kfm_dagster.idempotent_node.wal import Intent, IntentStatus, run_uuid
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster_tests.idempotent_node.counting import CODE, NOW, OTHER_RUN, RUN, CountLines, begin, open_nodes
from kfm_dagster_tests.timeouts import await_a_wait
from kfm_dagster_tests.transactions import own_tx


def statuses(nodes: IdempotentNodes, run_id: str = RUN) -> list[IntentStatus]:
    return [intent.status for intent in nodes.intents.of_run(run_id)]


@pytest.mark.clause("IEN-13")
@pytest.mark.parametrize("module", ["compute_hash", "wal", "checkpoint", "transaction", "replay"])
def test_the_modules_that_the_specification_names_exist(module: str) -> None:
    assert importlib.import_module(f"kfm_dagster.idempotent_node.{module}").__doc__


@pytest.mark.clause("IEN-07")
def test_content_applied_before_is_not_computed_again(node: CountLines, nodes: IdempotentNodes) -> None:
    first = run_node(nodes, node, run_id=RUN, code=CODE)
    second = run_node(nodes, node, run_id=OTHER_RUN, code=CODE)
    assert (first.status, second.status) == (IntentStatus.APPLIED, IntentStatus.SKIPPED)
    assert node.calls == 1
    assert second.output == first.output
    assert second.applied_by.run_id == RUN
    assert (statuses(nodes), statuses(nodes, OTHER_RUN)) == ([IntentStatus.APPLIED], [IntentStatus.SKIPPED])
    assert nodes.newest(node.name) == first.output


@pytest.mark.clause("IEN-07")
@pytest.mark.parametrize("change", ["input", "parameter", "kind", "code", "force"])
def test_a_change_runs_the_node_again(node: CountLines, nodes: IdempotentNodes, change: str) -> None:
    run_node(nodes, node, run_id=RUN, code=CODE)
    code, force = CODE, None
    match change:
        case "input":
            node.files[0].write_text("one line\n")
        case "parameter":
            node.minimum = 2
        case "kind":
            node.kind = "count-words"
        case "code":
            code = replace(CODE, code_sha="decaf")
        case _:
            force = "the reader was wrong"
    again = run_node(nodes, node, run_id=OTHER_RUN, code=code, force=force)
    assert again.status is IntentStatus.APPLIED
    assert node.calls == 2
    [intent] = nodes.intents.of_run(OTHER_RUN)
    assert ("kfm:forced" in intent.payload["params"]) == (change == "force")


@pytest.mark.clause("IEN-08")
def test_a_new_version_ends_the_validity_of_the_previous_version(node: CountLines, database: Database) -> None:
    days = count()
    nodes = IdempotentNodes(database, clock=lambda: NOW + timedelta(days=next(days)))
    contents = []
    for text in ("a\n", "b\nb\n", "c\nc\nc\n"):
        node.files[0].write_text(text)
        contents.append(run_node(nodes, node, run_id=RUN, code=CODE).output.content_hash)
    outputs = nodes.outputs_of(node.name)
    assert [output.content_hash for output in outputs] == contents
    begins = [output.valid_from for output in outputs]
    assert all(earlier < later for earlier, later in pairwise(begins) if earlier and later)
    assert [output.valid_to for output in outputs] == [*begins[1:], None]
    assert nodes.newest(node.name) == outputs[-1]


def test_newest_of_stage_returns_each_partition_s_newest_output_in_order(node: CountLines, database: Database) -> None:
    days = count()
    nodes = IdempotentNodes(database, clock=lambda: NOW + timedelta(days=next(days)))
    assert nodes.newest_of_stage("a_b", since=NOW) == []
    # Names of other stages begin with `a_b`, or match `a_b` if `_` is a wildcard.
    for name in ("a_b@2026-03-02", "a_b@2026-03-01", "a_bc@2026-03-03", "a-b@2026-03-03"):
        node.name, node.minimum = name, node.minimum + 1
        run_node(nodes, node, run_id=RUN, code=CODE)
    outputs = nodes.newest_of_stage("a_b", since=NOW)
    assert outputs == [nodes.newest("a_b@2026-03-01"), nodes.newest("a_b@2026-03-02")]
    assert nodes.newest_of_stage("a_b", since=NOW + timedelta(days=30)) == []


def test_a_clock_set_back_does_not_end_a_validity_before_its_start(node: CountLines, database: Database) -> None:
    first = run_node(open_nodes(database), node, run_id=RUN, code=CODE).output
    node.minimum = 2
    behind = IdempotentNodes(database, clock=lambda: NOW - timedelta(hours=1))
    second = run_node(behind, node, run_id=RUN, code=CODE).output
    [closed, _] = behind.outputs_of(node.name)
    assert closed.content_hash == first.content_hash
    assert closed.valid_to == closed.valid_from == NOW
    assert behind.newest(node.name) == second


@pytest.mark.clause("IEN-06")
def test_one_of_two_workers_applies_their_common_content_and_the_other_skips(
    node: CountLines, nodes: IdempotentNodes
) -> None:
    begun = [begin(nodes, node, run_id) for run_id in (RUN, OTHER_RUN)]
    assert [intent.status for intent in begun] == [IntentStatus.PENDING] * 2
    both_inside = threading.Barrier(2, timeout=30)
    effects: list[str] = []

    def work(intent: Intent) -> NodeResult:
        def effect(_: Transaction) -> Effect:
            effects.append(intent.run_id)
            return Effect(record={"by": "the first worker"})

        both_inside.wait()
        return own_tx(nodes).upsert(intent, effect)

    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(work, begun))
    assert Counter(end.status for end in ends) == {IntentStatus.APPLIED: 1, IntentStatus.SKIPPED: 1}
    assert len(effects) == 1
    assert ends[0].output == ends[1].output
    assert [end.applied_by.run_id for end in ends] == effects * 2


@pytest.mark.clause("IEN-08")
@pytest.mark.parametrize("before", [[], [1], [0, 1]], ids=["the first two", "after another", "a content returns"])
def test_of_two_concurrent_contents_of_a_node_one_stays_valid(
    node: CountLines, database: Database, before: list[int]
) -> None:
    minutes = count()
    nodes = IdempotentNodes(database, clock=lambda: NOW + timedelta(minutes=next(minutes)))
    for minimum in before:
        run_node(nodes, replace(node, minimum=minimum), run_id=RUN, code=CODE)
    first = begin(nodes, replace(node, minimum=2))
    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as tx:
            nodes.upsert(first, lambda _: Effect(record={}), tx=tx)
            second = pool.submit(run_node, nodes, node, run_id=OTHER_RUN, code=CODE)
            await_a_wait(database, second)
        newest, status = second.result().output, second.result().status
    # Content that returns is not applied again.
    assert status is (IntentStatus.SKIPPED if 0 in before else IntentStatus.APPLIED)
    outputs = nodes.outputs_of(node.name)
    assert len(outputs) == len({*before, 2, 0})
    assert [output for output in outputs if output.valid_to is None] == [newest]
    assert nodes.newest(node.name) == newest
    closed = next(output for output in outputs if output.content_hash == first.content_hash)
    assert closed.valid_from < closed.valid_to


@pytest.mark.clause("IEN-07")
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_skip_does_not_wait_for_the_lock_of_its_content(node: CountLines, nodes: IdempotentNodes) -> None:
    """A skip holds its node's lock; waiting for the content's lock as well could cause a deadlock."""
    content = content_of(node, code=CODE, run_id=RUN)
    for minimum in (0, 2):
        run_node(nodes, replace(node, minimum=minimum), run_id=RUN, code=CODE)

    def skip_twice() -> IntentStatus:
        with nodes.database.transaction() as tx:
            intent, _ = nodes.begin(content, run_id=OTHER_RUN, tx=tx)
            return nodes.upsert(intent, lambda _: Effect(record={}), tx=tx).status

    with ThreadPoolExecutor(1) as pool:
        with nodes.database.transaction() as tx:
            nodes.lock(content.content_hash, tx=tx)
            skipped = pool.submit(skip_twice)
            await_a_wait(nodes.database, skipped)
            assert skipped.done()
        assert skipped.result() is IntentStatus.SKIPPED


@pytest.mark.clause("IEN-06")
def test_an_effect_that_raises_leaves_only_a_failed_intent(node: CountLines, nodes: IdempotentNodes) -> None:

    def apply(tx: Transaction, effect: Effect) -> Effect:
        tx.run(
            "idempotent_node.put_output", content_hash="0" * 64, record="{}", lineage=None, at="2026-03-01T00:00:00Z"
        )
        raise OSError("the disk is full")

    node.apply = apply
    with pytest.raises(OSError, match="disk is full"):
        run_node(nodes, node, run_id=RUN, code=CODE)
    assert statuses(nodes) == [IntentStatus.FAILED]
    assert nodes.newest(node.name) is None
    assert own_tx(nodes).output("0" * 64) is None


COLUMNS = {
    "etl_wal": "wal_id run_id node step payload content_hash status started_at applied_at claimed",
    "etl_checkpoint": "node last_applied_hash updated_at",
    "node_output": "content_hash record lineage valid_from valid_to",
}


@pytest.mark.clause("IEN-03")
def test_the_tables_have_the_published_columns(database: Database) -> None:
    inspector = sa.inspect(database.engine)
    for table, columns in COLUMNS.items():
        assert [column["name"] for column in inspector.get_columns(table)] == columns.split()
    nullable = {
        (table, column["name"]) for table in COLUMNS for column in inspector.get_columns(table) if column["nullable"]
    }
    assert nullable - {("etl_wal", "wal_id")} == {
        ("etl_wal", "applied_at"),
        ("etl_wal", "claimed"),
        ("node_output", "lineage"),
        ("node_output", "valid_from"),
        ("node_output", "valid_to"),
    }
    keys = {table: inspector.get_pk_constraint(table)["constrained_columns"] for table in COLUMNS}
    assert keys == {"etl_wal": ["wal_id"], "etl_checkpoint": ["node"], "node_output": ["content_hash"]}


def test_a_run_id_that_is_not_a_uuid_is_mapped_to_a_fixed_uuid() -> None:
    assert run_uuid(RUN.upper()) == RUN
    assert run_uuid("run-1") == run_uuid("run-1") != run_uuid("run-2")

"""Replay after a crash at any statement or file operation gives a clean run's result."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.idempotent_node.node import run_node
from kfm_dagster.idempotent_node.replay import replay_intents
from kfm_dagster.idempotent_node.transaction import Effect, IdempotentNodes
from kfm_dagster.idempotent_node.wal import IntentStatus
from kfm_dagster_tests.idempotent_node.counting import CODE, NOW, OTHER_RUN, RUN, CountLines, begin, rebuilt
from kfm_dagster_tests.moments import deaths, dying
from kfm_dagster_tests.transactions import own_tx


def story(nodes: IdempotentNodes, node: CountLines) -> Any:
    """Return a node's intents, checkpoint, outputs and files as text to compare."""
    intents = [intent for intent in nodes.intents.of_run(RUN) if intent.node == node.name]
    rows = [
        (
            intent.step,
            intent.payload,
            intent.status,
            intent.started_at,
            intent.applied_at,
        )
        for intent in intents
    ]
    files = {path.name: path.read_bytes() for path in node.folder.glob("*")}
    text = repr((rows, nodes.newest(node.name), nodes.outputs_of(node.name), files)).replace(str(node.folder), "FOLDER")
    for intent in intents:
        text = text.replace(intent.content_hash, "HASH")
    return text.replace(node.name, "NAME")


@pytest.mark.clause("IEN-09", "IEN-06")
def test_a_crash_at_any_moment_and_a_replay_give_a_clean_run_s_result(
    node: CountLines, nodes: IdempotentNodes, tmp_path: Path
) -> None:

    def named(name: str) -> CountLines:
        # Another kind is another content, so that all crashes can use one database.
        return CountLines(files=node.files, folder=tmp_path / name, name=name, kind=name)

    clean = named("clean")
    run_node(nodes, clean, run_id=RUN, code=CODE)
    expected = story(nodes, clean)
    for at, death in deaths():
        crashed = named(f"crashed-{at}")
        with dying(nodes.database, at=death):
            crashed.reached = lambda death=death: death.reach("a file operation")
            run_node(nodes, crashed, run_id=RUN, code=CODE)
        begun = any(intent.node == crashed.name for intent in nodes.intents.of_run(RUN))
        report = replay_intents(nodes, rebuilt, node=crashed.name)
        assert not report.failed
        if not begun:
            # The crash was before the intent was durable: the caller repeats the run.
            run_node(nodes, named(crashed.name), run_id=RUN, code=CODE)
        assert story(nodes, crashed) == expected, death
    assert at > 15, "the crash moments cover the whole run"


@pytest.mark.clause("IEN-09")
def test_every_unresolved_intent_is_replayed_until_it_is_resolved(node: CountLines, nodes: IdempotentNodes) -> None:
    intents = []
    for number in range(3):
        other = CountLines(files=node.files, folder=node.folder, minimum=number, name=f"node-{number}")
        intents.append(begin(nodes, other))
    nodes.fail(intents[1], OSError())
    missing = node.files[0].read_bytes()
    node.files[0].unlink()
    first = replay_intents(nodes, rebuilt)
    assert set(first.failed) == {intent.wal_id for intent in intents}
    assert "FileNotFoundError" in first.failed[intents[0].wal_id]
    assert [intent.status for intent in nodes.intents.of_run(RUN)] == [IntentStatus.FAILED] * 3
    node.files[0].write_bytes(missing)
    assert replay_intents(nodes, rebuilt, node="node-1").applied == [intents[1].wal_id]
    assert replay_intents(nodes, rebuilt).applied == [intents[0].wal_id, intents[2].wal_id]
    assert [intent.status for intent in nodes.intents.of_run(RUN)] == [IntentStatus.APPLIED] * 3
    assert replay_intents(nodes, rebuilt) == replay_intents(nodes, rebuilt)
    assert not list(nodes.intents.unresolved())


@pytest.mark.clause("IEN-09")
def test_an_intent_whose_content_another_run_applied_is_skipped(node: CountLines, nodes: IdempotentNodes) -> None:
    lost = begin(nodes, node)
    run_node(nodes, node, run_id=OTHER_RUN, code=CODE)
    assert node.calls == 1

    def never(_: object) -> Any:
        raise AssertionError("nothing is to be computed")

    assert replay_intents(nodes, never).skipped == [lost.wal_id]
    assert [intent.status for intent in nodes.intents.of_run(lost.run_id)] == [IntentStatus.SKIPPED]


@pytest.mark.clause("IEN-09")
def test_an_intent_superseded_by_later_content_is_skipped(node: CountLines, nodes: IdempotentNodes) -> None:
    lost = begin(nodes, node)
    later = CountLines(files=node.files, folder=node.folder, minimum=2)
    newest = run_node(nodes, later, run_id=OTHER_RUN, code=CODE).output
    # Another node's intent is not superseded.
    begin(nodes, CountLines(files=node.files, folder=node.folder, name="others", kind="others"))
    assert replay_intents(nodes, rebuilt).skipped == [lost.wal_id]
    assert nodes.newest(node.name) == newest


@pytest.mark.clause("IEN-05", "IEN-09")
def test_an_intent_whose_inputs_have_changed_is_not_applied_under_its_hash(
    node: CountLines, nodes: IdempotentNodes
) -> None:
    lost = begin(nodes, node)
    node.files[0].write_text("corrected\n")
    assert (
        "the inputs of count-lines have changed since its intent" in replay_intents(nodes, rebuilt).failed[lost.wal_id]
    )
    assert nodes.newest(node.name) is None
    newer = run_node(nodes, node, run_id=OTHER_RUN, code=CODE)
    assert replay_intents(nodes, rebuilt).skipped == [lost.wal_id]
    assert nodes.newest(node.name) == newer.output


def test_superseded_failed_intents_are_skipped_in_one_step(node: CountLines, nodes: IdempotentNodes) -> None:
    for name, later in {"overtaken": True, "waiting": False}.items():
        other = CountLines(files=node.files, folder=node.folder, name=name, kind=name)
        intent = begin(nodes, other)
        nodes.fail(intent, OSError())
        if later:
            other.minimum = 5
            run_node(nodes, other, run_id=OTHER_RUN, code=CODE)
    assert nodes.intents.give_up_overtaken() == 1
    statuses = {intent.node: intent.status for intent in nodes.intents.of_run(RUN)}
    assert statuses == {"overtaken": IntentStatus.SKIPPED, "waiting": IntentStatus.FAILED}
    assert nodes.intents.give_up_overtaken() == 0


@pytest.mark.clause("IEN-06")
def test_a_slow_worker_can_apply_content_whose_intent_was_skipped(node: CountLines, nodes: IdempotentNodes) -> None:
    slow = begin(nodes, node)
    nodes.intents.fail_runs([RUN])
    node.minimum = 2
    run_node(nodes, node, run_id=OTHER_RUN, code=CODE)
    assert nodes.intents.give_up_overtaken() == 1

    upserted = own_tx(nodes).upsert(slow, lambda _: Effect(record={"by": "the slow worker"}))
    assert upserted.status is IntentStatus.APPLIED
    assert [intent.status for intent in nodes.intents.of_run(RUN)] == [IntentStatus.SKIPPED, IntentStatus.APPLIED]
    node.minimum = 0
    again = run_node(nodes, node, run_id=OTHER_RUN, code=CODE)
    assert (again.status, again.output) == (IntentStatus.SKIPPED, upserted.output)


def test_a_replay_can_leave_out_intents_that_started_recently(node: CountLines, nodes: IdempotentNodes) -> None:
    begin(nodes, node)
    assert not replay_intents(nodes, rebuilt, started_before=NOW).applied
    assert len(replay_intents(nodes, rebuilt, started_before=NOW + timedelta(seconds=1)).applied) == 1


@pytest.mark.clause("IEN-05", "IEN-06", "IEN-09")
def test_a_run_resumes_its_own_unresolved_intent(node: CountLines, nodes: IdempotentNodes) -> None:
    original = node.verify

    def broken(effect: Effect) -> None:
        raise OSError("the disk is missing")

    node.verify = broken
    with pytest.raises(OSError, match="missing"):
        run_node(nodes, node, run_id=RUN, code=CODE)
    assert [intent.status for intent in nodes.intents.of_run(RUN)] == [IntentStatus.FAILED]
    assert nodes.newest(node.name) is None
    node.verify = original
    assert run_node(nodes, node, run_id=RUN, code=CODE).status is IntentStatus.APPLIED
    assert len(nodes.intents.of_run(RUN)) == 1


@pytest.mark.clause("IEN-04")
@pytest.mark.parametrize("end", [IntentStatus.APPLIED, IntentStatus.SKIPPED])
def test_a_resolved_intent_keeps_its_status(end: IntentStatus, node: CountLines, nodes: IdempotentNodes) -> None:
    intent = begin(nodes, node)

    def resolved(status: IntentStatus) -> Any:
        return own_tx(nodes.intents).resolve(intent, status)

    assert [resolved(IntentStatus.FAILED) for _ in range(2)] == [True, False]
    if end is IntentStatus.APPLIED:
        assert run_node(nodes, node, run_id=RUN, code=CODE).status is end
    else:
        assert resolved(end)
    assert not any(resolved(status) for status in IntentStatus if status is not IntentStatus.PENDING)
    [resolved_intent] = nodes.intents.of_run(RUN)
    assert resolved_intent.status is end

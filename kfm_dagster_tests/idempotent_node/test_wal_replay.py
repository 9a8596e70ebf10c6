"""Replay: a crash after any statement or file operation, then a replay, ends as if nothing had happened."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.idempotent_node.node import run_node
from kfm_dagster.idempotent_node.replay import replay_intents
from kfm_dagster.idempotent_node.transaction import Effect
from kfm_dagster.idempotent_node.wal import IntentStatus
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.idempotent_node.counting import CODE, NOW, RUN, CountLines, begin, nodes, rebuilt
from kfm_dagster_tests.moments import deaths, dying

OTHER_RUN = "1" + RUN[1:]


def story(database: Database, node: CountLines) -> Any:
    """All that a node left: its intents, checkpoint, outputs and files. Names that differ by design are made equal."""
    made = nodes(database)
    intents = [intent for intent in made.intents.of_run(RUN) if intent.node == node.name]
    told = [
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
    text = repr((told, made.newest(node.name), made.outputs_of(node.name), files)).replace(str(node.folder), "FOLDER")
    for intent in intents:
        text = text.replace(intent.content_hash, "HASH")
    return text.replace(node.name, "NAME")


@pytest.mark.clause("IEN-09", "IEN-06")
def test_a_crash_anywhere_and_a_replay_end_as_a_clean_run(node: CountLines, database: Database, tmp_path: Path) -> None:
    made = nodes(database)

    def named(name: str) -> CountLines:
        # A kind of its own is content of its own, so that one database serves all crashes.
        return CountLines(files=node.files, folder=tmp_path / name, name=name, kind=name)

    clean = named("clean")
    run_node(made, clean, run_id=RUN, code=CODE)
    expected = story(database, clean)
    for at, death in deaths():
        crashed = named(f"crashed-{at}")
        with dying(database, at=death):
            crashed.reached = lambda death=death: death.reach("a file operation")
            run_node(made, crashed, run_id=RUN, code=CODE)
        begun = any(intent.node == crashed.name for intent in made.intents.of_run(RUN))
        report = replay_intents(made, rebuilt, node=crashed.name)
        assert not report.failed
        if not begun:
            # It died before its intent was durable: nothing has happened, and the caller asks for the run again.
            run_node(made, named(crashed.name), run_id=RUN, code=CODE)
        assert story(database, crashed) == expected, death
    assert at > 15, "a run has more moments than that"


@pytest.mark.clause("IEN-09")
def test_every_unresolved_intent_is_revisited_until_it_is_resolved(node: CountLines, database: Database) -> None:
    made = nodes(database)
    intents = []
    for number in range(3):
        one = CountLines(files=node.files, folder=node.folder, minimum=number, name=f"node-{number}")
        intents.append(begin(made, one))
    made.fail(intents[1], OSError())
    missing = node.files[0].read_bytes()
    node.files[0].unlink()
    first = replay_intents(made, rebuilt)
    assert set(first.failed) == {intent.wal_id for intent in intents}
    assert "FileNotFoundError" in first.failed[intents[0].wal_id]
    assert [intent.status for intent in made.intents.of_run(RUN)] == [IntentStatus.FAILED] * 3
    node.files[0].write_bytes(missing)
    assert replay_intents(made, rebuilt, node="node-1").applied == [intents[1].wal_id]
    assert replay_intents(made, rebuilt).applied == [intents[0].wal_id, intents[2].wal_id]
    assert [intent.status for intent in made.intents.of_run(RUN)] == [IntentStatus.APPLIED] * 3
    assert replay_intents(made, rebuilt) == replay_intents(made, rebuilt)
    assert not list(made.intents.unresolved())


@pytest.mark.clause("IEN-09")
def test_an_intent_whose_content_another_run_applied_is_skipped(node: CountLines, database: Database) -> None:
    made = nodes(database)
    lost = begin(made, node)
    run_node(made, node, run_id=OTHER_RUN, code=CODE)
    assert node.calls == 1

    def never(_: object) -> Any:
        raise AssertionError("nothing is to be computed")

    assert replay_intents(made, never).skipped == [lost.wal_id]
    assert [intent.status for intent in made.intents.of_run(lost.run_id)] == [IntentStatus.SKIPPED]


@pytest.mark.clause("IEN-09")
def test_an_intent_that_a_later_content_has_overtaken_is_skipped(node: CountLines, database: Database) -> None:
    made = nodes(database)
    lost = begin(made, node)
    later = CountLines(files=node.files, folder=node.folder, minimum=2)
    newest = run_node(made, later, run_id=OTHER_RUN, code=CODE).output
    # An intent of another node is not overtaken by it.
    begin(made, CountLines(files=node.files, folder=node.folder, name="others", kind="others"))
    assert replay_intents(made, rebuilt).skipped == [lost.wal_id]
    assert made.newest(node.name) == newest


@pytest.mark.clause("IEN-05", "IEN-09")
def test_an_intent_whose_inputs_have_changed_is_not_applied_under_its_hash(
    node: CountLines, database: Database
) -> None:
    made = nodes(database)
    lost = begin(made, node)
    node.files[0].write_text("corrected\n")
    assert (
        "the inputs of count-lines have changed since its intent" in replay_intents(made, rebuilt).failed[lost.wal_id]
    )
    assert made.newest(node.name) is None
    newer = run_node(made, node, run_id=OTHER_RUN, code=CODE)
    assert replay_intents(made, rebuilt).skipped == [lost.wal_id]
    assert made.newest(node.name) == newer.output


def test_failed_intents_that_were_overtaken_are_given_up_together(node: CountLines, database: Database) -> None:
    made = nodes(database)
    for name, later in {"overtaken": True, "waiting": False}.items():
        one = CountLines(files=node.files, folder=node.folder, name=name, kind=name)
        intent = begin(made, one)
        made.fail(intent, OSError())
        if later:
            one.minimum = 5
            run_node(made, one, run_id=OTHER_RUN, code=CODE)
    assert made.intents.give_up_overtaken() == 1
    statuses = {intent.node: intent.status for intent in made.intents.of_run(RUN)}
    assert statuses == {"overtaken": IntentStatus.SKIPPED, "waiting": IntentStatus.FAILED}
    assert made.intents.give_up_overtaken() == 0


@pytest.mark.clause("IEN-06")
def test_a_worker_that_lived_after_its_intent_was_given_up_is_still_found_as_the_one_who_applied(
    node: CountLines, database: Database
) -> None:
    made = nodes(database)
    slow = begin(made, node)
    made.intents.fail_runs([RUN])
    node.minimum = 2
    run_node(made, node, run_id=OTHER_RUN, code=CODE)
    assert made.intents.give_up_overtaken() == 1

    with database.transaction() as tx:
        upserted = made.upsert(slow, lambda _: Effect(record={"by": "the slow one"}), tx=tx)
    assert upserted.status is IntentStatus.APPLIED
    assert [intent.status for intent in made.intents.of_run(RUN)] == [IntentStatus.SKIPPED, IntentStatus.APPLIED]
    node.minimum = 0
    again = run_node(made, node, run_id=OTHER_RUN, code=CODE)
    assert (again.status, again.output) == (IntentStatus.SKIPPED, upserted.output)


def test_what_may_still_be_at_work_is_left_alone(node: CountLines, database: Database) -> None:
    made = nodes(database)
    begin(made, node)
    assert not replay_intents(made, rebuilt, started_before=NOW).applied
    assert len(replay_intents(made, rebuilt, started_before=NOW + timedelta(seconds=1)).applied) == 1


@pytest.mark.clause("IEN-05", "IEN-06", "IEN-09")
def test_a_run_takes_its_own_unresolved_intent_up_again(node: CountLines, database: Database) -> None:
    made = nodes(database)
    honest = node.verify

    def broken(effect: Effect) -> None:
        raise OSError("the disk is away")

    node.verify = broken
    with pytest.raises(OSError, match="away"):
        run_node(made, node, run_id=RUN, code=CODE)
    assert [intent.status for intent in made.intents.of_run(RUN)] == [IntentStatus.FAILED]
    assert made.newest(node.name) is None
    node.verify = honest
    assert run_node(made, node, run_id=RUN, code=CODE).status is IntentStatus.APPLIED
    assert len(made.intents.of_run(RUN)) == 1


@pytest.mark.clause("IEN-04")
@pytest.mark.parametrize("end", [IntentStatus.APPLIED, IntentStatus.SKIPPED])
def test_an_intent_that_is_resolved_is_resolved_no_more(
    end: IntentStatus, node: CountLines, database: Database
) -> None:
    made = nodes(database)
    intent = begin(made, node)

    def resolved(status: IntentStatus) -> bool:
        with database.transaction() as tx:
            return made.intents.resolve(intent, status, tx=tx)

    assert [resolved(IntentStatus.FAILED) for _ in range(2)] == [True, False]
    if end is IntentStatus.APPLIED:
        assert run_node(made, node, run_id=RUN, code=CODE).status is end
    else:
        assert resolved(end)
    assert not any(resolved(status) for status in IntentStatus if status is not IntentStatus.PENDING)
    [found] = made.intents.of_run(RUN)
    assert found.status is end

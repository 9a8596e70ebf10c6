"""Drafts: a contract for another dataset of a reader, made from the text of one that is in force.

A text and not a document, because the comments say where each figure is from. Does not belong here: whether a contract
is in order (`loader.py`).
"""

from __future__ import annotations

import re
from importlib import resources

from kfm_dagster.contracts.model import TOPIC_ARN
from kfm_dagster.errors import ContractError

DATASET_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TOPICS = re.compile(r"(?m)^    - arn: .*(\n    (- arn|  ).*)*$")
_HEAD = """\
# Made from the contract of {like}. To be looked through, from top to bottom:
#   metadata    title, description
#   storage     prefixes, key_grammar, ignore, sidecars, listing, listing_sets: how the keys of this bucket are built
#   integrity   min_bytes, max_bytes, and peers where it is known how much sizes vary
#   stac        item_id (groups of the key), providers, keywords, summaries
#   key_values  what its objects must say where their keys say it, too
#   citations, units   what this dataset's Items say, and by which source
#   freshness, coverage   how old a unit may be, and what a day has: leave them out where nobody knows
# Then: kfm dataset check FILE --sample DIR/{bucket}/KEY
"""


def draft(*, dataset: str, like: str, bucket: str, topic: str | None) -> str:
    """Return the text of a contract for `dataset`, like that of a dataset that ships with the package.

    Names, bucket and topic are the new ones; what a day has to bring and how sizes vary is left out. Raises
    ContractError for an id of another form, a topic that is no ARN of SNS, one that is missing or too many, or a
    dataset that does not ship.
    """
    if not DATASET_ID.fullmatch(dataset):
        raise ContractError("this is no dataset id", observed=dataset, expected="small letters, digits and hyphens")
    if topic is not None and not re.fullmatch(TOPIC_ARN, topic):
        raise ContractError(
            "the topic is no ARN of SNS",
            observed=topic,
            expected="arn:aws:sns:REGION:ACCOUNT:NAME",
            next_step="give --topic as the AWS open-data registry has it",
        )
    folder = resources.files("kfm_dagster.contracts") / "datasets"
    shipped = {file.name.removesuffix(".yaml"): file for file in folder.iterdir() if file.name.endswith(".yaml")}
    if like not in shipped:
        raise ContractError("no such contract ships", observed=like, expected=" or ".join(sorted(shipped)))
    if dataset in shipped:
        raise ContractError("there is a contract of that id", observed=dataset, expected="an id of its own")
    text = shipped[like].read_text(encoding="utf-8")
    if (topic is not None) != (_TOPICS.search(text) is not None):
        raise ContractError(
            f"{like} is announced by {'no topic' if topic else 'a topic'}",
            observed=f"--topic {topic}" if topic else "no --topic",
            next_step="leave --topic out" if topic else "give --topic as the AWS open-data registry has it",
        )
    # The reader may have the dataset's name, and stays; an address is of a page that there is, and stays, too.
    named = rf"(?m)^  reader:.*$|https?://\S+|\b{re.escape(like)}\b"
    text = re.sub(named, lambda found: dataset if found[0] == like else found[0], text)
    text = re.sub(r"(?m)^  title: .*$", f"  title: {dataset}", text, count=1)
    text = re.sub(r"(?m)^  description: .*(\n    .*)*$", f"  description: What {dataset} is.", text, count=1)
    text = _TOPICS.sub(f"    - arn: {topic}", text, count=1)
    text = re.sub(r"(?m)^  buckets: .*$", f"  buckets: [{bucket}]", text, count=1)
    # Another bucket's copies are elsewhere.
    text = re.sub(r"(?m)^  mirrors:\n(?:    .*\n)+", "", text)
    # Its keys say other things.
    text = re.sub(r"(?m)^  key_values:\n(?:    .*\n)+", "", text)
    # Nobody knows yet how its sizes vary.
    text = re.sub(r"(?m)^(?:  #.*\n)*  peers: .*\n", "", text)
    text = re.sub(r"(?ms)^coverage:\n.*?(?=^\S|\Z)", "", text)
    return _HEAD.format(like=like, bucket=bucket) + text

"""Drafts: a contract for another dataset of a reader, from the text of a shipped contract.

The draft is text, not a parsed document, to keep the comments that cite each figure's source. Does not belong here:
checking a contract (`loader.py`).
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
    """Return the text of a contract for `dataset`, derived from the shipped contract of `like`.

    Names, bucket and topic are replaced; coverage and peers are left out. Raises ContractError for a malformed or
    taken id, a topic that is not an SNS ARN, a missing or superfluous topic, or a `like` that does not ship.
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
    # The reader stays, even where it has the dataset's name; URLs stay, because they are of existing pages.
    pattern = rf"(?m)^  reader:.*$|https?://\S+|\b{re.escape(like)}\b"
    text = re.sub(pattern, lambda match: dataset if match[0] == like else match[0], text)
    text = re.sub(r"(?m)^  title: .*$", f"  title: {dataset}", text, count=1)
    text = re.sub(r"(?m)^  description: .*(\n    .*)*$", f"  description: What {dataset} is.", text, count=1)
    text = _TOPICS.sub(f"    - arn: {topic}", text, count=1)
    text = re.sub(r"(?m)^  buckets: .*$", f"  buckets: [{bucket}]", text, count=1)
    # Another bucket has other mirrors.
    text = re.sub(r"(?m)^  mirrors:\n(?:    .*\n)+", "", text)
    # Other keys state other values.
    text = re.sub(r"(?m)^  key_values:\n(?:    .*\n)+", "", text)
    # How its sizes vary is not known yet.
    text = re.sub(r"(?m)^(?:  #.*\n)*  peers: .*\n", "", text)
    text = re.sub(r"(?ms)^coverage:\n.*?(?=^\S|\Z)", "", text)
    return _HEAD.format(like=like, bucket=bucket) + text

"""moto's server as a child process: `python -m kfm_dagster.demo.moto_server`.

Belongs here: only code that must run inside that process. The process listens on a free loopback port, prints the port,
and ends when its standard input ends.

It replaces functions of moto 5.2 in four respects, so that the demo and the tests see the behaviour of AWS:

- *Accounts.* NODD's topics live in NOAA's accounts and our queue in ours; the queue's owner calls Subscribe. moto files
  a subscription under the account that made it, and publishes only to subscriptions under the topic's account. So no
  message crosses accounts. Here a topic's subscribers are looked up in every account; moto then delivers to these.
- *Atomicity.* moto's queue is not safe between threads: a delete drops a message that arrives meanwhile, and two
  receives return the same message. A lost message would look like a bug of the pipeline. Here a lock covers each step.
- *Signatures.* moto makes a certificate for every message, at a URL of AWS, and leaves the Subject out of the text that
  it signs. Here a single certificate signs the right text, and is served at its URL (`sns_signing.py`).
- *Cost.* moto takes 5 microseconds to read the clock, twice per queued message and call. Here the plain clock is read,
  so calls on a queue of some thousand messages take milliseconds.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import moto.sqs.models
from moto.core.utils import iso_8601_datetime_with_milliseconds
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.sns.models import SNSBackend, Subscription, Topic, sns_backends
from moto.sqs.models import Message, Queue, SQSBackend
from werkzeug.serving import make_server

from kfm_dagster.demo.child_server import end_with_parent
from kfm_dagster.demo.sns_signing import SnsSigner

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

POLL_SECONDS = 0.02
"""Pause between two receives of a long poll; too short for a sensor to notice."""

_queue_lock = threading.RLock()


def main() -> None:
    """Serve until stopped."""
    end_with_parent()
    _correct_moto()
    # A line per request would cost more than the request.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    signer = SnsSigner()
    server = make_server(
        "127.0.0.1",
        0,
        _with_files(DomainDispatcherApplication(create_backend_app), signer.files),
        threaded=True,
        request_handler=MotoRequestHandler,
    )
    os.environ["MOTO_PORT"] = str(server.server_port)
    _sign_with(signer, base_url=f"http://127.0.0.1:{server.server_port}")
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


def _correct_moto() -> None:
    replacements: list[tuple[Any, str, Callable[..., Any]]] = [
        (SNSBackend, "_get_topic_subscriptions", _subscriptions_of_every_account),
        (SQSBackend, "receive_message", _receive_in_turn(SQSBackend.receive_message)),
        (SQSBackend, "change_message_visibility", _one_at_a_time(SQSBackend.change_message_visibility)),
        (Queue, "add_message", _one_at_a_time(Queue.add_message)),
        (Queue, "delete_message", _one_at_a_time(Queue.delete_message)),
        (moto.sqs.models, "unix_time_millis", lambda: time.time() * 1000),
    ]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)


def _with_files(application: WSGIApplication, files: Mapping[str, bytes]) -> WSGIApplication:
    """Serve these files by their paths, and pass all other requests to the application."""

    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        content = files.get(environ["PATH_INFO"])
        if content is None:
            return application(environ, start_response)
        start_response("200 OK", [("Content-Type", "application/x-pem-file"), ("Content-Length", str(len(content)))])
        return [content]

    return serve


def _sign_with(signer: SnsSigner, *, base_url: str) -> None:
    def post_data(
        subscription: Subscription,
        message: str,
        message_id: str,
        subject: str | None,
        message_attributes: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        notification = {
            "Type": "Notification",
            "MessageId": message_id,
            "TopicArn": subscription.topic.arn,
            "Message": message,
            "Timestamp": iso_8601_datetime_with_milliseconds(),
            **({"Subject": subject} if subject else {}),
        }
        more = {"MessageAttributes": message_attributes} if message_attributes else {}
        return {**signer.signed(notification, base_url=base_url), **more}

    setattr(Subscription, "get_post_data", post_data)  # noqa: B010, moto's own method


def _subscriptions_of_every_account(backend: SNSBackend, topic: Topic) -> list[Subscription]:
    # Copies, because another request may create an account or a subscription meanwhile.
    return [
        subscription
        for account in list(sns_backends.values())
        for subscription in list(account[backend.region_name].subscriptions.values())
        if subscription.topic is topic
    ]


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with _queue_lock:
            return method(*args, **kwargs)

    return locked


def _receive_in_turn(receive: Callable[..., list[Message]]) -> Callable[..., list[Message]]:
    """Poll with short receives under the lock, so that a long poll never blocks a sender."""

    @functools.wraps(receive)
    def locked(
        backend: SQSBackend, queue_name: str, count: int, wait_seconds_timeout: int, *more: Any, **named: Any
    ) -> list[Message]:
        deadline = time.monotonic() + wait_seconds_timeout
        while True:
            with _queue_lock:
                received = receive(backend, queue_name, count, 0, *more, **named)
            if received or time.monotonic() >= deadline:
                return received
            time.sleep(POLL_SECONDS)

    return locked


if __name__ == "__main__":
    main()

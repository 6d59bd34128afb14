"""Asks the cloud whether this machine is about to be taken away, and stops the training in time.

On Kubernetes nothing asks: a termination handler drains the node, and pods get SIGTERM (docs/kubernetes.md). On a machine of a cloud that
runs stages itself, nobody sends a signal: its metadata service announces the end, 30 to 120 s before.
"""

from __future__ import annotations

import email.utils
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from training.errors import spec_error
from training.installation import LOCAL_RANK, Variable
from training.runtime.context import StopFlag

logger = logging.getLogger(__name__)

NOTICE: Final = Variable(
    name="NIGHTSHIFT_PREEMPTION_NOTICE",
    default="none: nothing is asked",
    meaning="`aws`, `gcp` or `azure`: the cloud whose metadata service a training asks every 5 s whether its machine is about to be taken"
    " away. `aws@http://HOST:PORT` asks it there",
)
POLL_SECONDS: Final = 5.0
REQUEST_SECONDS: Final = 2.0
MAX_BYTES: Final = 1 << 20
GCP_SECONDS: Final = 30.0
"""Between Google's notice and the end; the service does not say it."""
AZURE_SECONDS: Final = 30.0
"""Between Azure's notice and the end at least; an event that has begun has no time."""
ENDING: Final = ("Preempt", "Terminate", "Redeploy")
"""Types of Azure's events after which the machine is gone."""
HINT: Final = "write aws, gcp or azure, with @http://HOST:PORT where the service is elsewhere; or unset it"
HOSTS: Final[Mapping[str, str]] = {
    "aws": "http://169.254.169.254",
    "gcp": "http://metadata.google.internal",
    "azure": "http://169.254.169.254",
}


@contextmanager
def watching(stop: StopFlag) -> Iterator[None]:
    """Ask in this block, in a thread of the first process of each node, and request a stop at a notice.

    Raises:
        SpecError: `settings.notice`, the variable names no cloud.
    """
    text = NOTICE.text()
    if not text or LOCAL_RANK.read() != 0:
        yield
        return
    cloud, _, host = text.partition("@")
    if cloud not in HOSTS or (host and not host.startswith("http://")):
        message = "is not the metadata service of a cloud"
        raise spec_error("environment", "settings.notice", message, hint=HINT, field=NOTICE.name)
    ask, is_over = ASKS[cloud], threading.Event()
    where = host.rstrip("/") or HOSTS[cloud]
    threading.Thread(target=_watch, args=(ask, where, stop, is_over), name="preemption notice", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _watch(ask: Callable[[str], float | None], host: str, stop: StopFlag, is_over: threading.Event) -> None:
    is_unreachable = False
    while not is_over.is_set():
        try:
            seconds = ask(host)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
            # Once: the service may be away for hours.
            if not is_unreachable:
                logger.warning("the metadata service at %s does not say whether this machine stays: %s", host, err)
            is_unreachable = True
        else:
            is_unreachable = False
            if seconds is not None:
                logger.warning("this machine is taken away in %.0f s: the training stops after this step", seconds)
                stop.request(seconds)
                return
        is_over.wait(POLL_SECONDS)


def _aws(host: str) -> float | None:
    """Ask for the interruption of a spot instance, with the token that version 2 of the service needs."""
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _answer(f"{host}/latest/api/token", lifetime, method="PUT")
    found = _answer(f"{host}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token or ""})
    if not found:
        return None
    action = json.loads(found)
    if action["action"] not in ("terminate", "stop"):
        return None
    return _until(datetime.fromisoformat(str(action["time"])))


def _gcp(host: str) -> float | None:
    found = _answer(f"{host}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    return GCP_SECONDS if found is not None and found.strip() == "TRUE" else None


def _azure(host: str) -> float | None:
    found = _answer(f"{host}/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
    times = [
        _until(email.utils.parsedate_to_datetime(event["NotBefore"])) if event.get("NotBefore") else AZURE_SECONDS
        for event in (json.loads(found)["Events"] if found else ())
        if event["EventType"] in ENDING
    ]
    return min(times, default=None)


ASKS: Final[Mapping[str, Callable[[str], float | None]]] = {"aws": _aws, "gcp": _gcp, "azure": _azure}


def _until(end: datetime) -> float:
    end = end.replace(tzinfo=UTC) if end.tzinfo is None else end
    return max(0.0, (end - datetime.now(UTC)).total_seconds())


def _answer(url: str, headers: Mapping[str, str], *, method: str = "GET") -> str | None:
    """Return a document's text, None where there is none (404)."""
    # Imported here: few installations ask.
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310 - checked: http
    # Without the proxies of the environment, which have no way to this address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=REQUEST_SECONDS) as answer:
            return str(answer.read(MAX_BYTES).decode())
    except urllib.error.HTTPError as err:
        err.close()
        if err.code == 404:
            return None
        raise

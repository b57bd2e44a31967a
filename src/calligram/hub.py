"""The Hugging Face hub: whether it can be reached."""

from __future__ import annotations

import functools
import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

HUB_SECONDS = 5.0
"""longest time in which the hub answers"""


def look_for_hub(name: str) -> None:
    """Read files from the local cache alone if the hub cannot be reached; call it before a model is loaded by name.

    The libraries would try again for a minute, for every file. With a proxy the hub is not looked for.
    """
    if not Path(name).exists() and not hub_answers():
        use_cache_alone()


def use_cache_alone() -> None:
    """Never ask the hub in this process: models by name come from the local cache."""
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True


@functools.cache
def hub_answers() -> bool:
    """Whether a connection to the hub is possible."""
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    if address.scheme in getproxies():
        return True
    try:
        socket.create_connection((address.hostname or "", address.port or 443), HUB_SECONDS).close()
    except OSError:
        return False
    return True

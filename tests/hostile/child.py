"""Operations of the soak in processes of their own, which are killed when their time has come."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

from calligram.errors import UserError

LONGEST_SECONDS = 120.0
"""a child that is not killed must end in this time"""


class DifferenceError(AssertionError):
    """The library is not what the model says."""


class Child:
    """An operation in a process of its own, forked from this one."""

    def __init__(self, name: str, work: Callable[[], object], kill_after: float | None) -> None:
        self.name, self.started, self.kill_after = name, time.monotonic(), kill_after
        reading, writing = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(reading)
            try:
                answer: object = {"answer": work()}
            except UserError as error:
                answer = {"error": str(error)}
            except BaseException:
                answer = {"traceback": traceback.format_exc()}
            with contextlib.suppress(BaseException), os.fdopen(writing, "wb") as stream:
                stream.write(json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        self._reading = reading

    def wait(self) -> dict[str, Any] | None:
        """What it answered; None if it was killed. Kills it when its time has come."""
        limit = self.started + (LONGEST_SECONDS if self.kill_after is None else self.kill_after)
        ready, _, _ = select.select([self._reading], [], [], max(0.0, limit - time.monotonic()))
        if not ready:
            os.kill(self.process, signal.SIGKILL)
            if self.kill_after is None:
                raise DifferenceError(f"{self.name} did not end in {LONGEST_SECONDS:g} seconds")
        with os.fdopen(self._reading, "rb") as stream:
            data = stream.read()
        os.waitpid(self.process, 0)
        return json.loads(data) if ready and data else None

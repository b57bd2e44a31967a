"""Requests made up from the API's own description: every answer must be one that the description promises."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

EXAMPLES = 100
"""per operation, and per kind of request: those that follow the description, and those that break it"""
CHECKS = [
    not_a_server_error,
    checks.content_type_conformance,
    checks.negative_data_rejection,
    checks.response_schema_conformance,
    checks.status_code_conformance,
]
OPERATIONS = [
    ("GET", "/api/search"), ("POST", "/api/search"), ("GET", "/api/browse"), ("GET", "/api/item"),
    ("GET", "/api/thumbnail"), ("GET", "/api/image"), ("GET", "/api/health"), ("POST", "/api/login"),
    ("GET", "/metrics"), ("GET", "/api/stats"),
]  # fmt: skip
PLAIN = ("/api/health", "/metrics", "/api/stats")
"""without parameters, so nothing in a request can break the description"""


@pytest.fixture(scope="module")
def description(served):
    return schemathesis.openapi.from_url(f"{served.url}/api/openapi.json")


def test_every_operation_is_listed_here(description):
    described = {(o.ok().method.upper(), o.ok().path) for o in description.get_all_operations()}
    assert described == set(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_any_request_gets_an_answer_that_is_described(served, description, method, path):
    operation = description[path][method]
    for mode in [GenerationMode.POSITIVE] if path in PLAIN else GenerationMode:

        @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case):
            case.call_and_validate(base_url=served.url, timeout=30, checks=CHECKS)

        check()
    assert served.client.get("/api/health").status_code == 200

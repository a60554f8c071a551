"""The protocol as an OpenAPI document, for clients in other languages."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema

import genesis_fp16
from genesis_fp16.predictor.problems import MEDIA_TYPE
from genesis_fp16.predictor.requests import (
    BODIES,
    ChoicesBody,
    DecisionBody,
    OutcomeBody,
    PredictBody,
    RankBody,
    TransitionsBody,
)

_REFERENCE = "#/components/schemas/{model}"
_NUMBERS = {"type": "array", "items": {"type": ["number", "null"]}}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_RANKING: dict[str, Any] = {
    "agent": {"type": "string"},
    "version": {"type": ["string", "null"]},
    "order": {"type": "array", "items": {"type": "integer"}},
    "chances": _NUMBERS,
    "improvements": _NUMBERS,
    "confidence": _NUMBERS,
    "warnings": _TEXTS,
}
_DECISION = {
    "id": {"type": "string"},
    "chosen": {"type": "integer"},
    "propensity": {"type": "number"},
    "propensities": _NUMBERS,
    "deadline": {"type": "number"},
}
_COUNTS = {"recorded": {"type": "integer"}, "repeated": {"type": "integer"}}
_STATES = {"type": "string", "enum": ["recorded", "repeated", "late", "partial"]}
_PREDICTIONS = {
    "agent": {"type": "string"},
    "version": {"type": ["string", "null"]},
    "predictions": {"type": "array", "items": {"type": "object"}},
    "warnings": _TEXTS,
}
_AGENT = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
_DECISION_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "field": {"type": "string", "description": "Path of the field at fault"},
    },
}
_POSTS = (
    ("predict", PredictBody, "Predict what actions would lead to", _PREDICTIONS),
    ("rank", RankBody, "Order actions, best first", _RANKING),
    ("decisions", DecisionBody, "Choose an action, and remember it", _RANKING | _DECISION),
    ("choices", ChoicesBody, "Report choices that were made without asking", _COUNTS),
    (
        "transitions",
        TransitionsBody,
        "Report what happened without decisions",
        _COUNTS | {"warnings": _TEXTS},
    ),
)


@cache
def openapi() -> dict[str, Any]:
    """The document."""
    _, schemas = models_json_schema(
        [(body, "validation") for body in BODIES], ref_template=_REFERENCE
    )
    paths = {
        f"/api/agents/{{name}}/{verb}": _post(body.__name__, text, fields, _AGENT)
        for verb, body, text, fields in _POSTS
    }
    outcome = {"id": {"type": "string"}, "state": _STATES, "warnings": _TEXTS}
    text = "Report what came of a decision"
    paths["/api/agents/{name}/decisions/{id}/outcome"] = _post(
        OutcomeBody.__name__, text, outcome, _AGENT, _DECISION_ID
    )
    models = {"models": {"type": "array", "items": {"type": "object"}}}
    paths["/api/models"] = {"get": _operation("List the models that are served", models)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "genesis-fp16 predictor", "version": genesis_fp16.__version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas["$defs"], "Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _post(
    body: str, text: str, fields: dict[str, Any], *parameters: dict[str, Any]
) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=body)}}}
    operation = _operation(text, fields)
    operation |= {"parameters": parameters, "requestBody": {"required": True, "content": content}}
    return {"post": operation}


def _operation(text: str, fields: dict[str, Any]) -> dict[str, Any]:
    answer = {"type": "object", "properties": fields, "required": list(fields)}
    problem = {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(model="Problem")}}}
    return {
        "summary": text,
        "security": [{}, {"token": []}],
        "responses": {
            "200": {"description": text, "content": {"application/json": {"schema": answer}}},
            "default": {"description": "A problem", "content": problem},
        },
    }

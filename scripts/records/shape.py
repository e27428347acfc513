"""The shape of records: types, required keys and unknown keys, as docs/results.schema.json describes them."""
from __future__ import annotations

import functools
import json
from datetime import datetime
from pathlib import Path
from typing import Any

try:
    import jsonschema
except ImportError:  # run.sh needs no packages
    jsonschema = None  # type: ignore[assignment]

FILE = Path(__file__).resolve().parents[2] / "docs" / "results.schema.json"
SHAPE = json.loads(FILE.read_text(encoding="utf-8"))
COUNTERS = tuple(SHAPE["$defs"]["counters"]["properties"])
# Records that are older than these lack them.
LATER_COUNTERS = tuple(name for name in COUNTERS if name not in SHAPE["$defs"]["counters"]["required"])
NEEDS_JSONSCHEMA = "jsonschema says where (pip install jsonschema, or build/venv/bin/python after scripts/test.sh)"


def is_date(value: object) -> bool:
    try:
        return bool(datetime.strptime(str(value), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return False


@functools.cache
def validator() -> Any:
    formats = jsonschema.FormatChecker(formats=())
    formats.checks("date-time")(is_date)
    return jsonschema.Draft202012Validator(SHAPE, format_checker=formats)


def in_words(error: Any) -> list[str]:
    """What the validator found, as lines that begin with the place."""
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)[1:]
    prefix = f"{place}." if place else ""
    rule, wanted, value = error.validator, error.validator_value, error.instance
    if rule == "required":
        return [f"{prefix}{key}: missing" for key in wanted if key not in value]
    if rule == "additionalProperties":
        return [f"{prefix}{key}: unknown key" for key in value if key not in error.schema["properties"]]
    if rule == "type" and ("object" in wanted or "array" in wanted):
        return [f"{place or 'the file'}: must be {'an object' if 'object' in wanted else 'a list'}"]
    if rule in ("enum", "const"):
        values = ", ".join(each for each in ([wanted] if rule == "const" else wanted) if each is not None)
        return [f"{place}: is {json.dumps(value)}, must be one of {values}"]
    return [f"{place}: is {json.dumps(value)}, must be {error.schema['title']}"]


def check_shape(data: Any) -> list[str]:
    """What is not as results.schema.json has it. Nothing is said where jsonschema is missing."""
    if jsonschema is None:
        return []
    return list(dict.fromkeys(line for error in validator().iter_errors(data) for line in in_words(error)))

"""Checks docker-compose.yml against the Compose specification, unknown fields included: python compose.py FILE

Needs compose-spec, jsonschema and pyyaml. tests/deploy.rs runs it.
"""
import copy
import sys

import jsonschema
import yaml
from compose_spec import ComposeSpecification


def strict(schema):
    """The same schema, without leave for fields that it does not name."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: strict(part) for name, part in schema.items()}
    if "properties" in schema and schema.get("additionalProperties", True) is True:
        schema |= {"additionalProperties": False, "patternProperties": {"^x-": {}}}
    return schema


SCHEMA = strict(ComposeSpecification.model_json_schema(by_alias=True))


def check(compose):
    ComposeSpecification.model_validate(compose)
    jsonschema.validate(compose, SCHEMA)


file = yaml.safe_load(open(sys.argv[1]))
check(file)
for spoil in [
    lambda file: file.update(servces={}),
    lambda file: file["services"]["gateway"].update(comand=["serve"]),
    lambda file: file["services"]["gateway"].update(restart=5),
    lambda file: file["services"]["nats-1"]["healthcheck"].update(intervall="1s"),
]:
    spoilt = copy.deepcopy(file)
    spoil(spoilt)
    try:
        check(spoilt)
    except ValueError:  # of pydantic
        continue
    except jsonschema.ValidationError:
        continue
    raise AssertionError("a mistake was not found: these checks are worth nothing")
print("all checked")

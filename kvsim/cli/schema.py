"""`kvsim schema`: the JSON schema of scenario files."""


def schema() -> None:
    """Print the JSON schema of scenario files, for your editor."""
    import json

    from kvsim.scenario.schema import Scenario

    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    print(json.dumps(dialect | Scenario.model_json_schema(), indent=2))

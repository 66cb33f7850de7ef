"""The one door to DynamoDB's client."""

import aiobotocore.session  # type: ignore[import-untyped]  # noqa: F401

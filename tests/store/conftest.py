"""Stores at URLs: the fixtures of tests/data serve here too."""

from tests.data.conftest import (
    az_bucket,
    az_emulator,
    bucket,
    gs_bucket,
    no_patience,
    s3_bucket,
    s3_environment,
    s3_store,
    web,
)

__all__ = [
    "az_bucket",
    "az_emulator",
    "bucket",
    "gs_bucket",
    "no_patience",
    "s3_bucket",
    "s3_environment",
    "s3_store",
    "web",
]

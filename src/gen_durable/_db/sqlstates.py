"""SQLSTATE codes that the engine handles, under PostgreSQL's names for them; two characters are a class of codes."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ADMIN_SHUTDOWN",
    "CANNOT_CONNECT_NOW",
    "CONNECTION_EXCEPTION",
    "CRASH_SHUTDOWN",
    "DATA_EXCEPTION",
    "DATETIME_FIELD_OVERFLOW",
    "DEADLOCK_DETECTED",
    "DISK_FULL",
    "DUPLICATE_DATABASE",
    "FEATURE_NOT_SUPPORTED",
    "GEN_DURABLE",
    "IDLE_IN_TRANSACTION_SESSION_TIMEOUT",
    "INBOX_FULL",
    "INSUFFICIENT_PRIVILEGE",
    "INSUFFICIENT_RESOURCES",
    "INTEGRITY_CONSTRAINT_VIOLATION",
    "INVALID_AUTHORIZATION",
    "INVALID_CATALOG_NAME",
    "INVALID_COLUMN_REFERENCE",
    "INVALID_DATA",
    "INVALID_SCHEMA_NAME",
    "KEY_OF_ANOTHER_MACHINE",
    "KEY_TAKEN",
    "LIMIT_REFUSED",
    "LOCK_NOT_AVAILABLE",
    "OBJECT_NOT_IN_PREREQUISITE_STATE",
    "OPERATOR_INTERVENTION",
    "OUT_OF_MEMORY",
    "PROGRAM_LIMIT_EXCEEDED",
    "QUERY_CANCELED",
    "RACES",
    "READ_ONLY",
    "SERIALIZATION_FAILURE",
    "SYSTEM_ERROR",
    "TRANSACTION_TIMEOUT",
    "UNDEFINED_COLUMN",
    "UNDEFINED_FUNCTION",
    "UNDEFINED_OBJECT",
    "UNDEFINED_TABLE",
    "UNIQUE_VIOLATION",
]

CONNECTION_EXCEPTION: Final = "08"
FEATURE_NOT_SUPPORTED: Final = "0A000"
DATA_EXCEPTION: Final = "22"
INVALID_DATA: Final = "22000"
"""data_exception without a more precise code."""
DATETIME_FIELD_OVERFLOW: Final = "22008"
INTEGRITY_CONSTRAINT_VIOLATION: Final = "23"
UNIQUE_VIOLATION: Final = "23505"
READ_ONLY: Final = "25006"
"""read_only_sql_transaction: the server is a standby, or the session is read-only."""
IDLE_IN_TRANSACTION_SESSION_TIMEOUT: Final = "25P03"
TRANSACTION_TIMEOUT: Final = "25P04"
INVALID_AUTHORIZATION: Final = "28"
INVALID_CATALOG_NAME: Final = "3D000"
"""The database does not exist."""
INVALID_SCHEMA_NAME: Final = "3F000"
SERIALIZATION_FAILURE: Final = "40001"
DEADLOCK_DETECTED: Final = "40P01"
INSUFFICIENT_PRIVILEGE: Final = "42501"
UNDEFINED_COLUMN: Final = "42703"
UNDEFINED_OBJECT: Final = "42704"
UNDEFINED_FUNCTION: Final = "42883"
UNDEFINED_TABLE: Final = "42P01"
DUPLICATE_DATABASE: Final = "42P04"
INVALID_COLUMN_REFERENCE: Final = "42P10"
"""Also: ON CONFLICT finds no unique index."""
INSUFFICIENT_RESOURCES: Final = "53"
DISK_FULL: Final = "53100"
OUT_OF_MEMORY: Final = "53200"
PROGRAM_LIMIT_EXCEEDED: Final = "54"
OBJECT_NOT_IN_PREREQUISITE_STATE: Final = "55000"
LOCK_NOT_AVAILABLE: Final = "55P03"
"""lock_timeout, or NOWAIT."""
OPERATOR_INTERVENTION: Final = "57"
QUERY_CANCELED: Final = "57014"
"""statement_timeout, or pg_cancel_backend."""
ADMIN_SHUTDOWN: Final = "57P01"
"""The server shuts down, or pg_terminate_backend ended the session."""
CRASH_SHUTDOWN: Final = "57P02"
CANNOT_CONNECT_NOW: Final = "57P03"
"""The server starts, recovers or shuts down."""
SYSTEM_ERROR: Final = "58"

# Of gen_durable; docs/reference/sql.md lists them for callers.
GEN_DURABLE: Final = "GD"
KEY_OF_ANOTHER_MACHINE: Final = "GD001"
INBOX_FULL: Final = "GD002"
KEY_TAKEN: Final = "GD004"
LIMIT_REFUSED: Final = "22GD5"
"""A data exception: the rate limit does not exist, or the weight is above its burst."""

RACES: Final = frozenset({SERIALIZATION_FAILURE, DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE})
"""Another transaction had precedence: run the transaction again."""

"""The form of the names that replicas have in object keys."""

REPLICA_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"

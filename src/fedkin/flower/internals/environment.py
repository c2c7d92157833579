"""The environment variables that steer Flower's processes."""

HOME_VARIABLE = "FLWR_HOME"
"""Names the directory where a process of Flower unpacks what it runs."""

QUIET_VARIABLES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Turn Flower's telemetry and downloads off."""

CLOSED_VARIABLES = {"FLWR_INTERNAL_GRPC_CONTROL_API": "0", "FLWR_INTERNAL_GRPC_FLEET_API": "0"}
"""Keep Flower's older interfaces closed, at ports of their own and without a gate."""

"""The environment variables that steer Flower's processes."""

HOME_VARIABLE = "FLWR_HOME"
"""Names the directory where a process of Flower unpacks what it runs."""

QUIET_VARIABLES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Turn Flower's telemetry and downloads off."""

POLL_VARIABLES = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
"""Seconds between two times that a SuperExec asks for work. Flower's default of one second would be
paid twice by every message."""

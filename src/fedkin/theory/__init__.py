"""The paper's theory as functions: constants, schedules and bounds."""

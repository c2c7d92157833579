"""An attended federation around data at hand, whose nodes may fail."""

from fedkin.federation.unreliable import NOTHING
from fedkin.federation.unreliable import UnreliableSimulation as AttendedSimulation

__all__ = ["NOTHING", "AttendedSimulation"]

"""How the center talks to the nodes: one verb, several engines."""

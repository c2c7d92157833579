"""How the centre talks to the nodes: one verb, several engines."""

"""What several algorithms share: the local solver, rounds, participation, proximal maps, robust aggregation."""

"""What several algorithms share: the local solver, synchronous rounds, proximal maps, robust aggregation, schedules."""

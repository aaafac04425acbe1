"""The order of server events: clocks, delay models, live and replayed schedules."""

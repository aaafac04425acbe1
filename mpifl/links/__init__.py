"""How messages travel, and in which order they are consumed."""

"""What runs on the ranks with clients: local training, and their part of a checkpoint."""

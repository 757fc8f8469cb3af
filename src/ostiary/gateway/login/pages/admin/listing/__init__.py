"""What the administration area lists: what is searched for, and which rows match."""

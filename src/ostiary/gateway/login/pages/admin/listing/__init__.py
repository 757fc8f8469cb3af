"""What the administration area lists: what is searched for, which rows match, and their form in exports."""

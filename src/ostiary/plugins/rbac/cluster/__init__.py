"""The policy of a cluster, followed: its four kinds are listed once, and then watched.

followed_policy    the policy in force, how old it is, and whether it may still be used
followed_kind      one kind: list, watch, list again when the watch cannot go on
known_objects      its objects, in many small dicts
paged_list         one whole list, page by page
pauses             how long to wait before the next attempt
"""

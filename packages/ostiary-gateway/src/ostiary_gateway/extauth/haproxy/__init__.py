"""External authorization for HAProxy by SPOE: the gateway is the agent.

Decisions are made as for the other proxies, see `extauth.forward_auth`. `decision_push` lets HAProxy cache them.
"""

"""Step-ups: what a session must prove, how its person is asked, and what becomes of the session.

demands    what held requests wait for, in the token store
tickets    a step-up under way: for which session, and what it must prove
step_ups   applies what the identity system said to the session
calls      what programs on the person's machine ask
"""

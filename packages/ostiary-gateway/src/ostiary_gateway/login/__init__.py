"""Sign-in at ``/auth`` for users and workloads. `routes` dispatches the requests."""

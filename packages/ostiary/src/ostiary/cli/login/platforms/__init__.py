"""Sign-in of workloads without a stored secret, by the identity token that the platform gives to a job or pod.

sources                finds the platform and its token    proof       validates the token before it is sent
spiffe_workload_api    a JWT-SVID from an agent            options     ``--from`` and related options
credential             exchanges the token, and caches the result for this job
"""

"""Sign-in without a person and without a stored secret: what the platform says of this job or pod is the proof.

find          which platform this is, and its proof        proof        what a proof is, and which ones are not sent
kubernetes    a projected token, or TokenRequest           github       the job's token endpoint
gitlab        an ID token in a variable                    spiffe       a JWT-SVID, by file or Workload API
token_file    any other JWT in a file                      exchange     the proof for a token of the gateway
cache         the exchanged token, sealed for this job     credential   one exchange for any number of processes
"""

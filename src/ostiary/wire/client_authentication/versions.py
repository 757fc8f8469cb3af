"""The versions and kinds of ``client.authentication.k8s.io``, and how a field of a wrong type is called."""

from __future__ import annotations

GROUP = "client.authentication.k8s.io"
V1 = f"{GROUP}/v1"
V1BETA1 = f"{GROUP}/v1beta1"
V1ALPHA1 = f"{GROUP}/v1alpha1"
API_VERSIONS = (V1, V1BETA1, V1ALPHA1)

KIND = "ExecCredential"
PROPOSAL_INFO_KIND = "ExecInfo"
PROPOSAL_ANSWER_KIND = "ExecCredentials"
INFO_VARIABLE = "KUBERNETES_EXEC_INFO"

TYPE_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a whole number"}

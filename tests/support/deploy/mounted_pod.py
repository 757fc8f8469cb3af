"""A pod of the Deployment as the kubelet would mount it, below a folder, without a container.

ConfigMaps and Secrets are mounted as the kubelet does it: each file is a link to ``..data/NAME``, ``..data`` is a link
to a folder, and a change exchanges that link.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bcrypt
import trustme
import yaml

from tests.support.cluster import Cluster
from tests.support.deploy.render import Object
from tests.support.gateway import ServedGateway, Site, password

Files = Mapping[str, str]
# securityContext.fsGroup of the pods.
FS_GROUP = 65532


class MountedPod:
    """*rendered* are the objects of ``deploy/``, *secrets* the Secrets of the operator, *token* the projected one."""

    def __init__(
        self, folder: Path, ca: trustme.CA, rendered: list[Object], *, secrets: Mapping[str, Files], token: str
    ) -> None:
        self.site = Site(folder / "machine", ca)
        self.root = folder / "root"
        self._maps: dict[str, Files] = {
            each["metadata"]["name"]: each["data"] for each in rendered if each["kind"] == "ConfigMap"
        }
        self._maps["kube-root-ca.crt"] = {"ca.crt": ca.cert_pem.bytes().decode()}
        self._secrets, self._token = secrets, token
        deployment = next(each for each in rendered if each["kind"] == "Deployment")
        spec = deployment["spec"]["template"]["spec"]
        self.container = spec["containers"][0]
        self.pod_security = spec["securityContext"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in self.container["volumeMounts"]:
            self.write(mount["mountPath"], self._content(volumes[mount["name"]]))

    def write(self, mount_path: str, files: Files) -> None:
        """Mount *files*, or exchange what is mounted there for them."""
        folder = self.root / mount_path.removeprefix("/")
        folder.mkdir(parents=True, exist_ok=True)
        generation = folder / f"..{len(list(folder.iterdir()))}"
        generation.mkdir()
        for name, text in files.items():
            path = generation / name
            path.write_text(text)
            path.chmod(0o440)
            if os.geteuid() == 0:
                os.chown(path, 0, FS_GROUP)
        new = folder / "..data_tmp"
        new.symlink_to(generation.name)
        os.replace(new, folder / "..data")
        for name in files:
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(f"..data/{name}")

    def change_config(self, **sections: Any) -> None:
        """Replace whole sections of ``gateway.yaml``: addresses that exist only in a cluster."""
        path, files = "/etc/ostiary/config", dict(self._maps[self._config_map()])
        files["gateway.yaml"] = yaml.safe_dump({**yaml.safe_load(files["gateway.yaml"]), **sections})
        self.write(path, files)

    def run_here(self, cluster: Cluster, store: Mapping[str, Any]) -> None:
        """Change the addresses that exist only in a cluster, and the store; all paths and mounts stay."""
        config = yaml.safe_load(self.config.read_text())
        self.change_config(
            listen={**config["listen"], "address": "127.0.0.1:0", "shutdownDelay": "0s"},
            health={"address": "127.0.0.1:0"},
            store=dict(store),
            upstreams=[{**config["upstreams"][0], "server": cluster.url}],
        )

    @property
    def config(self) -> Path:
        """The file that the container's arguments name."""
        return self.root / str(self.container["args"][-1]).removeprefix("/")

    def serving(self) -> ServedGateway:
        return ServedGateway(self.site, self.config, {})

    def _config_map(self) -> str:
        return next(name for name, files in self._maps.items() if "gateway.yaml" in files)

    def _content(self, volume: Mapping[str, Any]) -> Files:
        if "configMap" in volume:
            return self._maps[volume["configMap"]["name"]]
        if "secret" in volume:
            return self._secrets[volume["secret"]["secretName"]]
        files: dict[str, str] = {}
        for source in volume["projected"]["sources"]:
            if "serviceAccountToken" in source:
                files[source["serviceAccountToken"]["path"]] = self._token
            else:
                part = source["configMap"]
                files |= {item["path"]: self._maps[part["name"]][item["key"]] for item in part["items"]}
        return files


def secrets_of_an_operator(ca: trustme.CA, *, database_password: str = "sesame") -> dict[str, Files]:
    """The Secrets that the guide makes, with alice as a user."""
    certificate = ca.issue_cert("localhost", "127.0.0.1")
    authority = ca.cert_pem.bytes().decode()
    return {
        "ostiary-gateway-secrets": {
            "users": _htpasswd_line("alice"),
            "database-password": database_password,
            "database-ca.crt": authority,
        },
        "ostiary-gateway-tls": {
            "tls.crt": "".join(pem.bytes().decode() for pem in certificate.cert_chain_pems),
            "tls.key": certificate.private_key_pem.bytes().decode(),
        },
    }


def _htpasswd_line(name: str) -> str:
    return f"{name}:{bcrypt.hashpw(password(name).encode(), bcrypt.gensalt(4)).decode()}\n"

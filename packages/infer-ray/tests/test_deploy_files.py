"""The files of `deploy/`: what Ray Serve and Kubernetes read is of the shape that they take."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray import serve
from ray.serve.schema import ServeDeploySchema

from infer_ray.application import application

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"


def strict(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "required": list(required),
        "properties": required | (optional or {}),
        "additionalProperties": False,
    }


TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
RESOURCES = strict({"limits": TEXTS, "requests": TEXTS})
CONTAINER = strict(
    {"name": NAME, "image": TEXT, "resources": RESOURCES},
    {
        "ports": {"type": "array", "items": strict({"containerPort": NUMBER}, {"name": NAME})},
        "volumeMounts": {"type": "array", "items": strict({"name": NAME, "mountPath": TEXT}, {"readOnly": FLAG})},
        "env": {"type": "array", "items": strict({"name": TEXT, "value": TEXT})},
    },
)
CLAIM = strict({"claimName": NAME}, {"readOnly": FLAG})
POD = strict(
    {"containers": {"type": "array", "minItems": 1, "items": CONTAINER}},
    {
        "terminationGracePeriodSeconds": NUMBER,
        "volumes": {"type": "array", "items": strict({"name": NAME, "persistentVolumeClaim": CLAIM})},
    },
)
TEMPLATE = strict({"spec": POD}, {"metadata": {"type": "object"}})
HEAD = strict({"rayStartParams": TEXTS, "template": TEMPLATE}, {"serviceType": TEXT, "enableIngress": FLAG})
WORKERS = strict(
    {"groupName": TEXT, "minReplicas": NUMBER, "maxReplicas": NUMBER, "rayStartParams": TEXTS, "template": TEMPLATE},
    {"replicas": NUMBER, "numOfHosts": NUMBER},
)
CLUSTER = strict(
    {"headGroupSpec": HEAD},
    {
        "rayVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        "enableInTreeAutoscaling": FLAG,
        "workerGroupSpecs": {"type": "array", "items": WORKERS},
    },
)
RAY_SERVICE = strict(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayService"},
        "metadata": strict({"name": NAME}, {"labels": TEXTS}),
        "spec": strict({"serveConfigV2": TEXT, "rayClusterConfig": CLUSTER}),
    }
)
"""What the manifest uses of the schemas of KubeRay (`rayservice_types.go`, `raycluster_types.go`) and Kubernetes."""


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def manifest_config() -> Any:
    return yaml.safe_load(read("rayservice.yaml")["spec"]["serveConfigV2"])


@pytest.mark.covers("replicas/ray-deploy-files")
def test_the_manifest_is_a_ray_service() -> None:
    manifest = read("rayservice.yaml")
    jsonschema.Draft202012Validator(RAY_SERVICE).validate(manifest)
    manifest["spec"]["rayClusterConfig"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0
    with pytest.raises(jsonschema.ValidationError, match="0 is not of type 'string'"):
        jsonschema.Draft202012Validator(RAY_SERVICE).validate(manifest)


def test_every_volume_is_mounted_and_every_replica_fits_a_worker() -> None:
    spec = read("rayservice.yaml")["spec"]["rayClusterConfig"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        mounts = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
    cluster = manifest_config()["applications"][0]["args"]["cluster"]
    [workers] = spec["workerGroupSpecs"]
    limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert cluster["num_cpus"] <= int(limits["cpu"])
    assert cluster["num_gpus"] <= int(limits["nvidia.com/gpu"])
    assert (workers["minReplicas"], workers["maxReplicas"]) == (cluster["replicas"], cluster["max_replicas"])


@pytest.mark.covers("replicas/ray-deploy-files")
@pytest.mark.usefixtures("resources")
@pytest.mark.parametrize("read_config", [lambda: read("serve.yaml"), manifest_config], ids=["serve", "rayservice"])
def test_ray_serve_and_this_package_take_the_configuration(read_config: Any) -> None:
    config = read_config()
    ServeDeploySchema.model_validate(config)
    [entry] = config["applications"]
    assert entry["import_path"] == f"{application.__module__}:{application.__name__}"
    assert isinstance(application(entry["args"]), serve.Application)

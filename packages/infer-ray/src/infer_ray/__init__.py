"""The server on a Ray cluster: replicas on many machines behind one address.

`infer_ray.application.application` is what `serve run` and a YAML file take. It imports Ray; this module does not.
"""

from infer_ray.options import ClusterOptions

__all__ = ["ClusterOptions"]

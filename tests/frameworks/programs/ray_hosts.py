"""Reads a cluster's hosts by the functions of Ray's cluster launcher (ray up): ray_hosts.py SOURCE FILE. Only these are loaded, as the
rest of Ray needs packages that are not here."""
import ast
import copy
import sys
from typing import Any, Dict, Tuple

import yaml


class Launcher:
    """Stands in for the launcher's messages, none of which is expected."""

    def __getattr__(self, name):
        return sys.exit


source, file = sys.argv[1:]
wanted = lambda node: isinstance(node, ast.Assign) or getattr(node, "name", None) in ("prepare_local", "prepare_manual")
tree = ast.parse(open(source).read())
names = {"copy": copy, "Any": Any, "Dict": Dict, "Tuple": Tuple, "cli_logger": Launcher()}
exec(compile(ast.Module([node for node in tree.body if wanted(node)], []), source, "exec"), names)
config, _ = names["prepare_local"](yaml.safe_load(open(file)))
provider = config["provider"]
print(provider["head_ip"], *provider["worker_ips"], config["max_workers"])

"""Reads a host file by the parser of DeepSpeed or of Horovod: hosts.py SOURCE FUNCTION FILE. Only the function is loaded, as the rest
of the module needs packages that are not here."""
import ast
import collections
import logging
import re
import sys

source, name, hostfile = sys.argv[1:]
tree = ast.parse(open(source).read())
function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
names = {"collections": collections, "re": re, "logger": logging.getLogger()}
exec(compile(ast.Module([function], []), source, "exec"), names)
# DeepSpeed's takes the lines, Horovod's the file.
argument = open(hostfile).readlines() if name.startswith("_") else hostfile
found = names[name](argument)
print(found if isinstance(found, str) else ",".join(f"{host}:{slots}" for host, slots in found.items()))

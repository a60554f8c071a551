"""What Ray starts before each of its workers, without importing Ray for that: it takes 0.6 s.

Ray's own file of this name sets the worker's environment variables and becomes the worker. It can
also start one in a container, or of another language; the jobs of the tests have variables alone.
Ray looks for the name of this file.
"""

import json
import os
import sys

_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context=", "--language="


def _main(arguments: list[str]) -> None:
    [context] = [json.loads(each.removeprefix(_CONTEXT)) for each in arguments if _CONTEXT in each]
    [language] = [each.removeprefix(_LANGUAGE) for each in arguments if _LANGUAGE in each]
    unknown = {name for name, value in context.items() if value} - {"env_vars", "py_executable"}
    if unknown or language != "PYTHON":
        sys.exit(f"the tests' Ray cannot start a worker of {language} with {unknown}")
    for name, value in context["env_vars"].items():
        os.environ[name] = os.path.expandvars(value)
    worker = [each for each in arguments if not each.startswith((_CONTEXT, _LANGUAGE))]
    os.execv(context["py_executable"] or sys.executable, ["python", *worker])


if __name__ == "__main__":
    _main(sys.argv[1:])

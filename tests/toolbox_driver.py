"""Run tool calls in a process of its own: takes one JSON argument, writes one JSON file."""

import json
import sys


def main():
    """Do what the job says."""
    job = json.loads(sys.argv[1])
    sys.path[:] = [*job["path"], *sys.path]
    from forkrun.protocol import ToolCall, ToolLimits
    from forkrun.tools import Toolbox

    tools = ("bash", "read_file", "write_file", "edit_file", "glob", "grep")
    results = []
    limits = ToolLimits(**job["limits"])
    with Toolbox(job["workspace"], tools=tools, env=job["env"], limits=limits) as toolbox:
        for name, arguments in job["calls"]:
            call = ToolCall(id="t1", name=name, input=json.dumps(arguments).encode())
            result = toolbox.run(call)
            results.append({"text": result.text, "is_error": result.is_error})
    with open(job["answer"], "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()

"""One module a task: each reads a config and wires the other rooms; `run(config, workdir)`."""

"""Where a configuration comes from: the files of `conf/`, a command line, a run's `config.yaml`.

Only this room imports Hydra. Clients get a configuration as JSON and do not need it. Whatever
cannot be read, composed or accepted is a ConfigError.
"""

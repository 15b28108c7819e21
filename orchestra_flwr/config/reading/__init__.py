"""Where a configuration comes from: the files of `conf/`, a command line, a run's `config.yaml`.

The only room that imports Hydra. Clients get a configuration as JSON and do without it. Whatever
cannot be read, composed or accepted is a ConfigError.
"""

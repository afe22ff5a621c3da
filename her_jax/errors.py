"""Mistakes that a user can mend: `main` shows their message alone, without a traceback."""


class ConfigError(ValueError):
  """Settings that contradict each other, the data or the devices. The message says the mend."""

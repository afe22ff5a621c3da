"""Set before anything imports JAX: eight fake CPU devices run what a pod runs."""

import os

_DEVICES = "--xla_force_host_platform_device_count"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests never reach for the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

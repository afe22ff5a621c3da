"""Set before anything imports JAX: eight fake CPU devices run what a pod runs."""

import os

import hypothesis

_DEVICES = "--xla_force_host_platform_device_count"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# No model is ever looked for on the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# How many examples a property gets: HYPOTHESIS_PROFILE=thorough for the long run.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=5000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

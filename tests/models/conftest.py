"""A TPU to compile for, where there is none."""

from jax.experimental import topologies
import pytest


@pytest.fixture
def chips(monkeypatch):
  """Four chips of v6e, which programs are compiled for though none is here."""
  pytest.importorskip("libtpu", reason="compiling for TPU needs libtpu: jax[tpu]")
  monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")  # Asks no cloud which machine this is.
  monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  return topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x2").devices

"""The least time that a chip's peaks allow for a counted program, and the MFU it allows.

counts = hlo.count(compiled.as_text(), devices=64)
bound = roofline(counts, "v5p", model_flops=786e12)
print(bound.limit, bound.step_s, bound.mfu)
"""

import dataclasses

from launch_tpu.hlo import Counts


@dataclasses.dataclass(frozen=True)
class Chip:
  """Public peaks of one chip.

  Source: the pages docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}. They give the
  interconnect of a chip in both directions together: v5e 400, v5p 1200, v6e 800, tpu7x 1200
  GB/s; half of it is here. For v4 it is the all-reduce bandwidth of a pod, 1.1 PB/s, over
  its 4,096 chips: for v5e that rule (51.2 TB/s, 256 chips) gives the same as half of 400.

  Attributes:
    bf16_tflops: Peak of bfloat16 matrix products, 1e12 FLOP/s.
    hbm_gbps: HBM bandwidth, 1e9 bytes/s.
    hbm_gib: HBM, 2**30 bytes.
    ici_gbps: What all links of the chip together send, 1e9 bytes/s; they receive as much at
      the same time.
    usable_gib: HBM that a program may use on one JAX device, 2**30 bytes: the limit in the
      error of libtpu 0.0.42 for a program that is too large; for v5p 95, of 95.74, and for
      v6e 31, of 31.25.
    devices: JAX devices on the chip: the two cores of v4 and v5p make one (megacore), those
      of tpu7x two.
  """

  bf16_tflops: float
  hbm_gbps: float
  hbm_gib: float
  ici_gbps: float
  usable_gib: float
  devices: int = 1


CHIPS = {
  "v4": Chip(bf16_tflops=275, hbm_gbps=1200, hbm_gib=32, ici_gbps=268, usable_gib=30.75),
  "v5e": Chip(bf16_tflops=197, hbm_gbps=819, hbm_gib=16, ici_gbps=200, usable_gib=15.75),
  "v5p": Chip(bf16_tflops=459, hbm_gbps=2765, hbm_gib=95, ici_gbps=600, usable_gib=95),
  "v6e": Chip(bf16_tflops=918, hbm_gbps=1638, hbm_gib=32, ici_gbps=400, usable_gib=31),
  "tpu7x": Chip(
    bf16_tflops=2307, hbm_gbps=7380, hbm_gib=192, ici_gbps=600, usable_gib=94.75, devices=2
  ),
}


def _chip(name: str) -> Chip:
  if name not in CHIPS:
    raise ValueError(f"no peaks of the chip {name!r}; known are {', '.join(CHIPS)}")
  return CHIPS[name]


def usable_hbm_gib(chip: str) -> float:
  """HBM that a program may use on one JAX device of `chip`, in GiB (2**30 bytes)."""
  return _chip(chip).usable_gib


@dataclasses.dataclass(frozen=True)
class Roofline:
  """Least seconds a step can take on one device, by what would limit it.

  Attributes:
    compute_s: FLOPs at the bfloat16 peak.
    hbm_s: HBM bytes at the peak of HBM. The bytes are an estimate from above, so where HBM
      is the limit, the real bound may be better than `mfu` says.
    ici_s: Bytes sent at the rate of all links together.
    model_s: The model's own FLOPs, without rematerialisation, at the bfloat16 peak.
  """

  compute_s: float
  hbm_s: float
  ici_s: float
  model_s: float

  @property
  def step_s(self) -> float:
    """Seconds of a step in which the three overlap in full: the longest of them."""
    return max(self.compute_s, self.hbm_s, self.ici_s)

  @property
  def limit(self) -> str:
    """What takes `step_s`: "compute", "hbm" or "ici"."""
    times = {"compute": self.compute_s, "hbm": self.hbm_s, "ici": self.ici_s}
    return max(times, key=lambda name: times[name])

  @property
  def mfu(self) -> float:
    """Model FLOPs utilisation, at most: model FLOPs / (peak FLOP/s * step_s)."""
    return self.model_s / self.step_s


def roofline(
  counts: Counts, chip: str, model_flops: float, kernel_flops: float = 0.0
) -> Roofline:
  """Bounds a counted program by the peaks of a chip.

  What it assumes, all in favour of the program except the HBM bytes:
   - compute, HBM and interconnect overlap in full;
   - every matrix product runs at the bfloat16 peak and other arithmetic costs nothing;
   - a collective uses all links of the chip in both directions. One over a single axis of
     the torus has a third of them (v4, v5p, tpu7x) or half (v5e, v6e), and it has half of
     these where the axis does not wrap around;
   - latency is nothing, and all collectives stay in one slice: what goes over the data
     center's network between slices is counted as if it went over the links.

  Args:
    counts: What `hlo.count` gave for the program: FLOPs and bytes of one device.
    chip: A key of `CHIPS`. On tpu7x a device has half of its chip.
    model_flops: FLOPs of one device that the model needs: the numerator of MFU.
    kernel_flops: FLOPs of one device inside of Pallas kernels, which `counts` cannot see.

  Raises:
    ValueError: the chip is unknown, or `counts` has loops whose trip count was not read.
  """
  peaks = _chip(chip)
  if counts.unread_loops:
    raise ValueError(
      f"trip counts of {', '.join(counts.unread_loops)} are unknown: give them to hlo.count "
      "as trips={name: count}"
    )
  peak = peaks.bf16_tflops * 1e12 / peaks.devices
  return Roofline(
    compute_s=(counts.matmul_flops + kernel_flops) / peak,
    hbm_s=counts.hbm_bytes / (peaks.hbm_gbps * 1e9 / peaks.devices),
    ici_s=counts.total_wire_bytes / (peaks.ici_gbps * 1e9 / peaks.devices),
    model_s=model_flops / peak,
  )

"""The flags of the commands are the fields of the configs' section `llm`."""

from configs import llm
from data_pipeline.preferences import llm_flags


def test_every_field_is_a_flag_with_the_same_default():
  assert {
    name: default for name, (default, _) in llm_flags.FIELDS.items()
  } == llm.llm().to_dict()

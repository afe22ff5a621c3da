"""A backend that is a function: replies computed in this process."""

from collections.abc import Callable

from her_jax.llm.messages import Failure, Reply, Request


class Scripted:
  """Answers with `function(request)`."""

  def __init__(self, model: str, function: Callable[[Request], Reply | Failure]):
    self.model = model
    self._function = function

  async def send(self, request: Request) -> Reply | Failure:
    return self._function(request)

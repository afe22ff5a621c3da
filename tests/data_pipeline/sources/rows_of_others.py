"""Rows as other projects write them, small and of our own writing."""

from typing import Any

SCENARIO = "The ferry has stopped in mid-river; fog on all sides, the bell silent."


def line(name: str, message: str, **more: Any) -> dict[str, Any]:
  return {"character": name, "message": message, **more}


def conversation(lines: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
  return {
    "scenario": SCENARIO,
    "topic": "whether to row",
    "key_characters": [
      {"name": "Una Brook", "motivation": "I must be across by dawn."},
      {"name": "Mr. Joost", "thought": "Nobody rows my boat but me."},
    ],
    "dialogues": lines
    or [
      line("Una Brook", "[He is afraid.] (takes an oar) Then I'll row."),
      line("MR JOOST:", "(sits down) [Let her try.] You will not get far."),
      line("Environment", "The fog closes in."),
      line("Una Brook (to herself)", "Far enough."),
    ],
    "i_c": 0,
    **more,
  }


def coser_book(plots: int = 3, **more: Any) -> dict[str, Any]:
  return {
    "book": "The Ferry",
    "plots": [
      {
        "text": f"Passage {i}. The ferry stopped, and the two of them argued.",
        "summary": f"They argue, {i}.",
        "prominence": 60,
        "chapter": f"Chapter {i + 1}",
        "key_characters": [
          {
            "name": "Una Brook",
            "description": "A surveyor.",
            "experience": "Missed the bridge.",
          },
          {"name": "Mr. Joost", "description": "The ferryman.", "experience": ""},
        ],
        "conversation": [conversation()],
        "state": "finished",
        "i_p": i,
      }
      for i in range(plots)
    ],
    "character_datasets": {
      "Una Brook": {"profile": "Una surveys rivers.", "plots": [], "conversations": []},
      "Mr. Joost": {"profile": "Joost has run the ferry for thirty years."},
      "The Abbot": {"profile": "He is in another chapter."},
    },
    **more,
  }


def her_row(i: int = 0, **more: Any) -> dict[str, Any]:
  """As `full_info` has them: turns merged, plans under the origin ids before merging."""
  return {
    "trace_id_book_chapter": f"the_ferry_{i}",
    "book_name": "The Ferry",
    "plot_index": i,
    "conv_index": 0,
    "text": "The ferry stopped, and the two of them argued.",
    "summary": "They argue.",
    "prominence": 60,
    "chapter": "Chapter 1",
    "i_p": i,
    "key_characters": [{"name": "Una", "description": "A surveyor.", "experience": "Lost."}],
    "conversation": [
      {
        "scenario": SCENARIO,
        "topic": "rowing",
        "key_characters": [{"name": "Una", "motivation": "I must be across."}],
        "speaking_characters_w_env": ["Una", "Joost", "Environment"],
        "dialogues": [
          {
            "character": "Una",
            "message": "[Afraid.] Then I'll row.",
            "origin_id": [0, 1],
            "standard_format": "<role_thinking>Afraid.</role_thinking>Then I'll row.",
            "without_think": "Then I'll row.",
            "enhanced_speech": "<role_thinking>He is afraid, I see it.</role_thinking>"
            "<role_action>takes an oar</role_action> Then I'll row.",
            "enhanced_reason": "The thought was thin.",
            "enhanced_pattern": "TAS",
          },
          {"character": "Joost", "message": "You will not get far.", "origin_id": [2]},
          {"character": "Una", "message": "Far enough.", "origin_id": [3]},
        ],
        "i_c": 0,
      }
    ],
    "character_datasets": {
      "Una": {"character_profile": "Una surveys.", "background": "Born inland."},
      "Joost": {"character_profile": "Joost ferries.", "motivation_enriched": "I row alone."},
    },
    "training_samples": {
      "Una": [
        {"role": "user", "content": "===Conversation Start==="},
        {
          "role": "assistant",
          "content": "…",
          "origin_id": [0, 1],
          "sys_thinking_revised": "She answers his fear with an oar.",
          "sys_thinking_original": "Perhaps she shouts.",
        },
        {
          "role": "assistant",
          "content": "…",
          "origin_id": [3],
          "sys_thinking_revised": "She keeps it short.",
        },
      ]
    },
    **more,
  }


def sft_row(turns: int = 2, **more: Any) -> dict[str, Any]:
  """As `sft_multi_turn` has them; with `turn_index`, as `sft_single_turn`."""
  messages = [
    {"role": "system", "content": "You are Una, from The Ferry. You survey rivers."},
    {"role": "user", "content": "===Conversation Start===\nJoost: You will not get far."},
    {
      "role": "assistant",
      "content": "<system_thinking>She keeps it short.</system_thinking>"
      "Una: <role_thinking>We'll see.</role_thinking>Far enough.",
    },
    {"role": "user", "content": "Joost: Hm.\nEnvironment: The bell rings."},
    {"role": "assistant", "content": "Una: <role_action>rows</role_action> There it is."},
  ]
  kept = messages[: 1 + 2 * turns]
  return {"messages": kept, "trace_id": "the_ferry_0", "character": "Una", **more}


def sharegpt_row(**more: Any) -> dict[str, Any]:
  return {
    "id": "talk-1",
    "conversations": [
      {"from": "system", "value": "You are Una Brook, a surveyor. {{user}} is the ferryman."},
      {"from": "human", "value": "Where to?"},
      {"from": "gpt", "value": "*looks up* Across. [He knows.] And quickly."},
    ],
    **more,
  }

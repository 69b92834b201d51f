"""Chat templates as models carry them, in short: where contents stand, what is trimmed, which roles are taken."""

from __future__ import annotations

PLAIN = (
    "{% for message in messages %}{{ '<|start|>' + message['role'] + '\n' + message['content'] + '<|stop|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
TRIMMED = (  # as Llama 3's
    "{{ bos_token }}{% for message in messages %}{{ '<|start|>' + message['role'] + '<|stop|>\n\n' "
    "+ message['content'] | trim + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|stop|>\n\n' }}{% endif %}"
)
UNMARKED = (  # as Llama 2's: the brackets are no special tokens
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' ' }}{% endif %}{% endfor %}"
)
STRICT = (  # as Gemma's
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{{ '<|start|>' + ('model' if message['role'] == 'assistant' else message['role']) "
    "+ '\n' + message['content'] | trim + '<|stop|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>model\n' }}{% endif %}"
)
MOVED = (  # as Mistral's: the system speaks in the last message by the user
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}{% if message['role'] == 'user' %}{{ '[INST]' + (system if loop.last else '') + message['content'] + '[/INST]' }}"
    "{% else %}{{ message['content'] + '<|stop|>' }}{% endif %}{% endfor %}"
)
THINKING = PLAIN + "{{ '<think>\n' }}"

TEMPLATES = {
    "plain": PLAIN,
    "trimmed": TRIMMED,
    "unmarked": UNMARKED,
    "strict": STRICT,
    "moved": MOVED,
    "thinking": THINKING,
}

LOUD = PLAIN.replace("message['content']", "message['content'] | upper")
THOUGHTS = PLAIN.replace("message['content']", "message['content'].split('</think>')[-1]")  # as DeepSeek's
HIDDEN = PLAIN.replace("message['content']", "(message['content'] if 'a' in message['content'] else 'nothing')")

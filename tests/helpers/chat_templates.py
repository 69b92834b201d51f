"""Chat templates in the style of real models, shortened: where contents go, what is trimmed, which roles exist."""

from __future__ import annotations

PLAIN = (
    "{% for message in messages %}{{ '<|start|>' + message['role'] + '\n' + message['content'] + '<|stop|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
TRIMMED = (  # like Llama 3's
    "{{ bos_token }}{% for message in messages %}{{ '<|start|>' + message['role'] + '<|stop|>\n\n' "
    "+ message['content'] | trim + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|stop|>\n\n' }}{% endif %}"
)
UNMARKED = (  # like Llama 2's: the brackets are not special tokens
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' ' }}{% endif %}{% endfor %}"
)
STRICT = (  # like Gemma's
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{{ '<|start|>' + ('model' if message['role'] == 'assistant' else message['role']) "
    "+ '\n' + message['content'] | trim + '<|stop|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>model\n' }}{% endif %}"
)
MOVED = (  # like Mistral's: the system prompt goes into the last user message
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
THOUGHTS = PLAIN.replace("message['content']", "message['content'].split('</think>')[-1]")  # like DeepSeek's
HIDDEN = PLAIN.replace("message['content']", "(message['content'] if 'a' in message['content'] else 'nothing')")

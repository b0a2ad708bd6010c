#!/usr/bin/env python3
"""Check that Hugging Face opens a gpt that Inspan trained, and the other way round, and that both say the same.

usage: check_huggingface.py INSPAN FOLDER [PROMPT]      (needs torch and transformers; INSPAN is the built binary)

FOLDER has model.safetensors and config.json. The likeliest continuation of PROMPT, as long as the context allows, must be
the same bytes from GPT2LMHeadModel, from `inspan generate`, and from `inspan generate` on what save_pretrained wrote.
"""
import subprocess
import sys
import tempfile

import torch
from transformers import GPT2LMHeadModel


def by_huggingface(model, prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return bytes(tokens[len(prompt):])


def by_inspan(binary, folder, prompt, count):
    command = [binary, "generate", folder, "--prompt", prompt.decode(), "--tokens", str(count), "--temperature", "0"]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    return output[output.index(prompt) + len(prompt):][:count] if prompt in output else output[:count]


def main():
    binary, folder = sys.argv[1:3]
    prompt = (sys.argv[3] if len(sys.argv) > 3 else "In the ").encode()
    model, report = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    model.eval()
    assert not any(report.values()), f"not every tensor found its place: {report}"
    count = model.config.n_positions - len(prompt)
    expected = by_huggingface(model, prompt, count)
    assert by_inspan(binary, folder, prompt, count) == expected, "inspan generate says something else"
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        assert by_inspan(binary, saved, prompt, count) == expected, "what save_pretrained wrote says something else"
    print(f"the same {count} bytes three times: {expected!r}")


if __name__ == "__main__":
    main()

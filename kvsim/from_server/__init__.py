"""What starts a vLLM server (a command, a manifest, a script) → a scenario file.

`shell`, `manifest` and `operators` say how commands are written, `find` which of them is the
server, `flags` and `settings_file` what its arguments mean here, `surroundings` what stands around
them, `draft` what the scenario says, and `write` puts it on disk if it can run.
"""

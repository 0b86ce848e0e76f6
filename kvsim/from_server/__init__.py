"""What starts a vLLM server (a command, a manifest, a script) → a scenario file.

`shell` and `manifest` say how commands are written, `find` which of them is the server, `flags`
what its flags mean here, `draft` what the scenario says, and `write` puts it on disk if it can run.
"""

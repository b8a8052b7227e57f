"""The hall for edges whose other end is a stage of vLLM-Omni, over a transfer engine."""

"""The keys of ``extra`` that stage processors and models read.

In: nothing. Out: a table of what each key is.
Never: checks a value; whoever reads a knob judges it.

vLLM-Omni hands a connector's ``extra`` to the code of the stages, so files keep the settings of that
code there. They pass through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Knob(NamedTuple):
    """One key that is no backend's option."""

    kind: str
    unit: str
    meaning: str


_WHOLE, _NUMBER, _TRUTH, _TEXT = "whole number", "number", "true or false", "text"
_LIST = "list of whole numbers"
_UNREAD = "Found in files; nothing reads it."
_WIRED = "Follows from the wiring; what is written here is not read."

_CHUNKS = {
    "codec_chunk_frames": Knob(
        f"{_WHOLE}, or a list of them", "frames", "Frames that one chunk brings to the decoder."
    ),
    "codec_left_context_frames": Knob(
        _WHOLE, "frames", "Earlier frames that travel again with each chunk."
    ),
    "codec_right_holdback_frames": Knob(
        _WHOLE, "frames", "Newest frames held back, so that a chunk knows what comes after it."
    ),
    "initial_codec_chunk_frames": Knob(
        _WHOLE, "frames", "Frames of the first chunk; 0 makes it like the others."
    ),
    "codec_chunk_frames_at_begin": Knob(
        _WHOLE, "frames", "Frames of the chunks with which a request begins."
    ),
    "codec_chunk_ramp": Knob(
        f"{_LIST}, or text with commas", "frames", "Frames of the first chunks, one after another."
    ),
    "codec_chunk_adaptive": Knob(
        _TRUTH, "", "Whether the length of chunks follows the measured speed."
    ),
    "codec_chunk_min_frames": Knob(_WHOLE, "frames", "Shortest chunk while chunks adapt."),
    "codec_chunk_safety_margin_ms": Knob(
        _NUMBER, "milliseconds", "Sound kept in hand while chunks adapt."
    ),
    "codec_chunk_ramp_divisor": Knob(
        _WHOLE, "", "How slowly chunks grow while they adapt: larger is slower."
    ),
    "codec_chunk_ramp_delta_min": Knob(
        _WHOLE, "frames", "Least growth from one chunk to the next while they adapt."
    ),
    "codec_max_chunk_frames": Knob(_WHOLE, "frames", "Longest chunk that growing ends at."),
    "codec_stream_scale_factor": Knob(_WHOLE, "", "Factor by which chunks grow."),
    "codec_pre_lookahead_frames": Knob(
        _WHOLE, "frames", "Frames that the decoder sees ahead of a chunk."
    ),
    "ref_code_context_frames": Knob(
        _WHOLE, "frames", "Frames of the reference voice that travel as context."
    ),
    "codec_vocab_size": Knob(_WHOLE, "", "Number of codec tokens."),
    "codec_token_offset": Knob(_WHOLE, "", "Id of the first codec token."),
    "audiocodec_vocab_size": Knob(_WHOLE, "", "Number of tokens of the audio codec."),
    "audiocodec_token_offset": Knob(_WHOLE, "", "Id of the audio codec's first token."),
    "latent_chunk_size": Knob(_WHOLE, "latents", "Latents that one chunk brings."),
    "initial_latent_chunk_size": Knob(_WHOLE, "latents", "Latents of the first chunk."),
    "latent_left_context": Knob(
        _WHOLE, "latents", "Earlier latents that travel again with each chunk."
    ),
    "crossfade_sec": Knob(_NUMBER, "seconds", "Sound over which neighbouring chunks are blended."),
    "native_talker": Knob(_TRUTH, "", "Whether the talker gets plain text in its own format."),
    "delivery_timeout_s": Knob(_NUMBER, "seconds", "How long the delivery of one output may take."),
}

_FISH = {
    "fish_speech_tensor_codes": Knob(_TRUTH, "", "Whether codes travel as a tensor, not a list."),
    "fish_speech_single_initial_chunk": Knob(
        _TRUTH, "", "Whether only the very first chunk is a short one."
    ),
    "fish_speech_backlog_codec_chunk_frames": Knob(
        _WHOLE, "frames", "Frames of a chunk while requests queue up; 0 for no difference."
    ),
    "fish_speech_backlog_load_threshold": Knob(
        _NUMBER, "", "Share of the sequences in use from which requests count as queueing."
    ),
    "fish_speech_backlog_min_ready": Knob(
        _WHOLE, "requests", "Requests that have to be ready for longer chunks."
    ),
    "fish_speech_dac_dtype": Knob(_TEXT, "", "Number format of the decoder."),
    "fish_speech_dac_max_batch": Knob(
        _WHOLE, "requests", "Requests decoded together; 0 for no limit."
    ),
    "fish_speech_dac_max_padded_frames": Knob(
        _WHOLE, "frames", "Frames decoded together, padding included; 0 for no limit."
    ),
    "dac_max_batch": Knob(_WHOLE, "requests", "Older name of `fish_speech_dac_max_batch`."),
    "dac_max_padded_frames": Knob(
        _WHOLE, "frames", "Older name of `fish_speech_dac_max_padded_frames`."
    ),
}

_MODELS = {
    "audio8_tts_codec_dtype": Knob(_TEXT, "", "Number format of the codec."),
    "decode_chunk_frames": Knob(_WHOLE, "frames", "Frames that the decoder takes at a time."),
    "decode_left_context_frames": Knob(
        _WHOLE, "frames", "Earlier frames that the decoder takes again."
    ),
    "decode_batch_max_size": Knob(_WHOLE, "requests", "Requests decoded together."),
    "decode_cudagraph_batch_sizes": Knob(
        _LIST, "requests", "Batch sizes for which the decoder is captured as a CUDA graph."
    ),
    "decode_cudagraph_capture_sizes": Knob(
        _LIST, "frames", "Lengths for which the decoder is captured as a CUDA graph."
    ),
    "decode_enable_tf32": Knob(_TRUTH, "", "Whether the decoder may compute in TF32."),
    "decoder_emit_chunk_frames": Knob(_WHOLE, "frames", "Frames after which sound is given out."),
    "code_predictor_prefix_graphs": Knob(
        _TRUTH, "", "Whether the code predictor is captured by the length of its prefix."
    ),
    "code_predictor_prefix_graph_buckets": Knob(_LIST, "requests", "Batch sizes captured so."),
    "code_predictor_prefix_graph_seq_lens": Knob(_LIST, "tokens", "Lengths captured so."),
    "enable_hift_graph": Knob(_TRUTH, "", "Whether the vocoder is captured as a CUDA graph."),
    "hift_graph_capture_batch_sizes": Knob(_LIST, "requests", "Batch sizes captured so."),
    "enable_cfm_graph": Knob(_TRUTH, "", "Whether the flow model is captured as a CUDA graph."),
    "cfm_max_graphs": Knob(_WHOLE, "graphs", "Graphs of the flow model that are kept."),
    "cfm_graph_bucket_frames": Knob(
        _WHOLE, "frames", "Lengths of the flow model are rounded up to multiples of this."
    ),
    "code2wav_min_batch_size": Knob(_WHOLE, "requests", "Requests that are waited for."),
    "code2wav_initial_batch_size": Knob(
        _WHOLE, "requests", "Requests that are waited for at first."
    ),
    "code2wav_bfloat16_attention_cache": Knob(
        _TRUTH, "", "Whether the attention cache is kept in bfloat16."
    ),
    "token2wav_float16": Knob(_TRUTH, "", "Whether sound is made in float16."),
    "token2wav_n_timesteps": Knob(_WHOLE, "steps", "Steps of the flow model."),
    "token2wav_trt": Knob(_TRUTH, "", "Whether the flow model runs in TensorRT."),
    "token2wav_trt_dtype": Knob(_TEXT, "", "Number format in TensorRT."),
    "token2wav_trt_max_batch": Knob(_WHOLE, "requests", "Largest batch in TensorRT."),
    "token2wav_setup_cache_size": Knob(_WHOLE, "voices", "Voices kept prepared."),
    "token2wav_runtime_prompt_cache_size": Knob(
        _WHOLE, "voices", "Voices of requests kept prepared."
    ),
    "ref_audio_max_seconds": Knob(_NUMBER, "seconds", "How much of a reference voice is used."),
    "ref_audio_artifact_cache_max_entries": Knob(
        _WHOLE, "voices", "Prepared reference voices that are kept."
    ),
    "prompt_cache_id": Knob(_TEXT, "", "Name of the voice that is used where none is given."),
    "prompt_wav": Knob(_TEXT, "", "File with that voice."),
}

_UNUSED = {
    "connector_get_sleep_s": Knob(
        _NUMBER, "seconds", "Pause between two questions for a payload. " + _UNREAD
    ),
    "connector_get_max_wait": Knob(
        _WHOLE, "questions", "How often a payload is asked for. " + _UNREAD
    ),
    "connector_get_max_wait_first_chunk": Knob(
        _WHOLE, "questions", "How often a first chunk is asked for. " + _UNREAD
    ),
    "codec_streaming": Knob(_TRUTH, "", "Whether sound streams. " + _UNREAD),
    "shm_threshold_bytes": Knob(
        _WHOLE, "bytes", "From which size shared memory was used. " + _UNREAD
    ),
    "stage_id": Knob(_WHOLE, "", _WIRED),
    "from_stage": Knob(_WHOLE, "", _WIRED),
    "to_stage": Knob(_WHOLE, "", _WIRED),
    "outgoing": Knob("mapping", "", _WIRED),
}

KNOBS: Mapping[str, Knob] = {**_CHUNKS, **_FISH, **_MODELS, **_UNUSED}

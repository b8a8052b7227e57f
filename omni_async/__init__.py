"""Asyncio-native transports between the stages of omni-modality serving."""

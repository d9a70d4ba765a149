"""The half for asyncio, of which the other half is written."""

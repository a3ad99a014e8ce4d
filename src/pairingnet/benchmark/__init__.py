"""All methods side by side: asked the same, stage by stage, and scored by the same code."""

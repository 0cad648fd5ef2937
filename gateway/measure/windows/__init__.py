"""Which window, and which draft, suits one's own prompts: measured on engines, or worked out from recorded acceptance."""

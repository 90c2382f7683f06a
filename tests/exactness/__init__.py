"""The law: any shares give what one device gives."""

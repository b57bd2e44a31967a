"""Vector indexes: exact in memory, Lance, Milvus. Nothing above knows which."""

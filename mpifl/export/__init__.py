"""Run files in the formats of other tools: CSV, Parquet, TensorBoard, safetensors, PyTorch."""
